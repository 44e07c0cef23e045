"""The loop against hand-written loops and torch's own parts."""

from __future__ import annotations

import copy
import math
import signal
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from holdfast.errors import HoldfastError, Interrupted
from holdfast.methods import Method, Stage, State
from holdfast.parts import METHODS, MethodPart
from holdfast.rng import Generators, derive
from holdfast.settings import ScheduleSettings, TrainSettings, build
from holdfast.train import fit, train
from holdfast.train.progress import Progress
from holdfast.train.step_parts import WeightAverage, rate_factor
from holdfast.types import Batch, View, Views
from tests.conftest import SignalAt, flat_weights, make_data, same_weights
from tests.train.plain import PLAIN, Linear


def hand_written(model: nn.Module, optimizer: torch.optim.Optimizer, epochs: int, batch: int, clip: float | None):
    """The loop anyone would write, over the engine's documented order."""
    train = make_data().train
    for epoch in range(epochs):
        generator = torch.Generator().manual_seed(derive(0, f"order/0/{epoch}"))
        for index in torch.randperm(len(train), generator=generator).split(batch):
            optimizer.zero_grad()
            F.cross_entropy(model(train.images[index].float() / 255), train.labels[index]).backward()
            if clip:
                torch.nn.utils.clip_grad_norm_(model.parameters(), clip)
            optimizer.step()


@pytest.mark.parametrize(
    ("name", "reference"),
    [
        ("sgd", lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9, weight_decay=1e-3)),
        ("adam", lambda p: torch.optim.Adam(p, lr=0.1, weight_decay=1e-3)),
        ("adamw", lambda p: torch.optim.AdamW(p, lr=0.1, weight_decay=1e-3)),
    ],
)
@pytest.mark.parametrize("clip", [None, 0.05])
def test_equals_a_hand_written_loop(name: str, reference, clip: float | None) -> None:
    torch.manual_seed(0)
    ours, theirs = (m := Linear()), copy.deepcopy(m)
    hand_written(theirs, reference(theirs.parameters()), 3, 16, clip)
    fit(make_data(), model=ours, optimizer=name, lr=0.1, clip=clip, **PLAIN)
    torch.testing.assert_close(flat_weights(ours), flat_weights(theirs), rtol=1e-5, atol=1e-6)


def test_parts_of_a_batch_give_the_gradient_of_the_whole() -> None:
    torch.manual_seed(0)
    whole = Linear().double()
    parts = copy.deepcopy(whole)

    class Doubled(nn.Module):
        def __init__(self, net: nn.Module) -> None:
            super().__init__()
            self.net = net

        def forward(self, x: Tensor) -> Tensor:
            return self.net(x.double())

    fit(make_data(90), model=Doubled(whole), lr=0.1, **PLAIN)
    fit(make_data(90), model=Doubled(parts), lr=0.1, accumulate=5, **PLAIN)
    torch.testing.assert_close(flat_weights(whole), flat_weights(parts), rtol=1e-12, atol=1e-13)


def test_the_average_follows_its_formula() -> None:
    model = nn.Linear(2, 1)
    average = WeightAverage(model, decay=0.5)
    expected = flat_weights(model).double()
    for t in range(1, 12):
        with torch.no_grad():
            for p in model.parameters():
                p.add_(torch.randn_like(p))
        average.update()
        decay = min(0.5, (1 + t) / (10 + t))
        expected = decay * expected + (1 - decay) * flat_weights(model).double()
    torch.testing.assert_close(flat_weights(average.model).double(), expected, rtol=1e-5, atol=1e-6)


def reference_rates(scheduler, epochs: int) -> list[float]:
    rates = []
    for _ in range(epochs):
        rates.append(scheduler.get_last_lr()[0])
        scheduler.optimizer.step()
        scheduler.step()
    return rates


@pytest.mark.parametrize(
    ("settings", "reference"),
    [
        (ScheduleSettings("step", step_size=3, gamma=0.5), lambda o: torch.optim.lr_scheduler.StepLR(o, 3, 0.5)),
        (
            ScheduleSettings("multistep", milestones=(2, 5), gamma=0.1),
            lambda o: torch.optim.lr_scheduler.MultiStepLR(o, [2, 5], 0.1),
        ),
        (ScheduleSettings("cosine"), lambda o: torch.optim.lr_scheduler.CosineAnnealingLR(o, 10)),
        (ScheduleSettings("constant"), lambda o: torch.optim.lr_scheduler.LambdaLR(o, lambda _: 1.0)),
    ],
)
def test_schedules_equal_those_of_torch(settings: ScheduleSettings, reference) -> None:
    optimizer = torch.optim.SGD([nn.Parameter(torch.zeros(1))], lr=1.0)
    ours = [rate_factor(settings, s, steps_per_epoch=1, epochs=10) for s in range(10)]
    assert ours == pytest.approx(reference_rates(reference(optimizer), 10), abs=1e-12)


def test_warm_up_rises_to_the_peak_and_cosine_then_ends_at_zero() -> None:
    settings = ScheduleSettings("cosine", warmup=2)
    rates = [rate_factor(settings, s, steps_per_epoch=5, epochs=6) for s in range(31)]
    assert rates[:10] == sorted(rates[:10])
    assert rates[0] > 0
    assert max(rates) == rates[10] == 1
    assert rates[10:] == sorted(rates[10:], reverse=True)
    assert rates[30] == pytest.approx(0)


@dataclass(frozen=True)
class TwoStages(Method):
    """A test's own method: an auxiliary model first, then the main one on what the first got wrong."""

    name: ClassVar[str] = "test-two-stages"

    def start(self, context):
        state = super().start(context)
        state.first = Linear()
        state.register_buffer("wrong", torch.zeros(len(context.labels), dtype=torch.int64))
        return state

    def stages(self, epochs):
        return Stage("first", 2), Stage("main", epochs)

    def trainee(self, state, model):
        return state.first if state.stage.name == "first" else model

    def begin(self, state, predict) -> None:
        if state.stage.name == "main":
            state.wrong.copy_(predict(state.first).argmax(1).cpu() != state.context.labels)

    def repeats(self, state):
        return None if state.stage.name == "first" else 1 + 2 * state.wrong


@dataclass(frozen=True)
class WithAuxiliary(Method):
    """A test's own method: weighs samples by an auxiliary model that learns beside the main one."""

    name: ClassVar[str] = "test-auxiliary"
    nan_at: int = 0

    def start(self, context):
        state = super().start(context)
        state.auxiliary = Linear()
        state.register_buffer("steps", torch.zeros(()))
        return state

    def views(self, batch: Batch, *, model: nn.Module, state: State, rng: Generators) -> Views:
        state.steps += 1
        losses = F.cross_entropy(state.auxiliary(batch.x), batch.y, reduction="none")
        noise = torch.rand(len(batch), generator=rng["method"])
        weight = losses.detach() + noise
        weight = torch.where(state.steps == self.nan_at, torch.nan, weight)
        return Views((View(batch.x, batch.y, weight),), auxiliary_loss=losses.mean())


@pytest.fixture
def _registered(monkeypatch: pytest.MonkeyPatch) -> None:
    len(METHODS)  # finds the others first
    for made in (TwoStages, WithAuxiliary):
        monkeypatch.setitem(METHODS._parts, made.name, MethodPart(name=made.name, about="", made=made))


@pytest.mark.usefixtures("_registered")
def test_stages_train_their_own_network_on_their_own_repeats() -> None:
    seen: list[int] = []

    class Count(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.net = Linear()

        def forward(self, x: Tensor) -> Tensor:
            if self.training:
                seen.append(len(x))
            return self.net(x)

    model = Count()
    result = fit(make_data(), model=model, method="test-two-stages", lr=1e-6, **{**PLAIN, "epochs": 1})
    assert [r["stage"] for r in result.history] == ["first", "first", "main"]
    right = round(result.history[1]["test_accuracy"] * 48)  # the first stage hardly moved, so errors abound
    assert right < 40
    assert sum(seen) > 96  # wrong ones were shown three times


@pytest.mark.usefixtures("_registered")
def test_an_auxiliary_model_descends_beside_the_main_one() -> None:
    settings = build(TrainSettings, {"method": "test-auxiliary", "lr": 0.1, **PLAIN})
    torch.manual_seed(3)
    models = [Linear() for _ in range(2)]
    models[1].load_state_dict(models[0].state_dict())
    first, second = (train(settings, data=make_data(), model=m) for m in models)
    assert same_weights(first.model, second.model)
    assert first.history[-1]["train_loss"] < first.history[0]["train_loss"]


@pytest.mark.usefixtures("_registered")
def test_auxiliary_and_staged_methods_resume_identically(tmp_path) -> None:
    from holdfast.train import Interrupted

    for name in ("test-auxiliary", "test-two-stages"):
        settings = build(TrainSettings, {"method": name, "optimizer": "adam", **PLAIN})
        whole = train(settings, data=make_data())
        for step in (3, 12, 14):
            out = tmp_path / f"{name}-{step}"
            with pytest.raises(Interrupted):
                train(settings, data=make_data(), out=out, progress=SignalAt(step))
            assert same_weights(whole.model, train(settings, data=make_data(), out=out, resume=True).model)


@pytest.mark.usefixtures("_registered")
@pytest.mark.parametrize("step", [3, 6, 9])
def test_a_loss_that_is_not_finite_stops_with_its_step_and_keeps_the_last_good_checkpoint(step, tmp_path) -> None:
    out = tmp_path / "run"
    method = {"name": "test-auxiliary", "nan_at": step}
    with pytest.raises(HoldfastError, match=rf"not finite at step {step};.*lower --lr \(now 0.05\)") as error:
        fit(make_data(), method=method, out=out, lr=0.05, **PLAIN)
    if step <= 6:  # the first epoch has six steps
        assert "no checkpoint was written" in str(error.value)
        assert not out.exists()
    else:
        assert "the last good checkpoint is" in str(error.value)
        assert [p.name for p in (out / "checkpoint").iterdir()] == ["step-000000006"]


def test_selection_keeps_the_best_epoch_not_the_last() -> None:
    data = make_data()
    settings = {**PLAIN, "epochs": 12, "lr": 3.0, "optimizer": "sgd"}  # unstable, so that epochs differ
    result = fit(data, select="oracle-test", **settings)
    scores = [r["test_accuracy"] for r in result.history]
    with torch.no_grad():
        logits = result.model(data.test.images.float() / 255)
    assert (logits.argmax(1) == data.test.labels).double().mean().item() == pytest.approx(max(scores))
    assert scores[-1] < max(scores)


def test_selection_by_validation_needs_one() -> None:
    with pytest.raises(HoldfastError, match="needs a validation set; hold one out with --val 0.1"):
        fit(make_data(), select="val-average", **PLAIN)


class NeverTrained(Linear):
    def forward(self, x: Tensor) -> Tensor:
        assert not self.training
        return super().forward(x)


def test_a_selection_by_groups_needs_some_before_anything_is_trained() -> None:
    data = make_data()
    data = replace(data, val=replace(data.test, groups=torch.full((len(data.test),), -1)))
    with pytest.raises(HoldfastError, match="select val-worst-group needs groups in the validation set, and it has no"):
        fit(data, model=NeverTrained(), select="val-worst-group", eval_every=0, **PLAIN)


class SignalsAtTheEnd(Progress):
    """Sends this process a signal when its last epoch has been told of."""

    def epoch(self, record: Mapping[str, Any], epochs: int) -> None:
        if record["epoch"] == epochs:
            signal.raise_signal(signal.SIGTERM)


def test_a_signal_at_the_very_end_ends_a_training_that_can_be_continued(tmp_path) -> None:
    """Whoever trains several in turn would lose the signal otherwise, and go on with the next."""
    settings = build(TrainSettings, PLAIN)
    with pytest.raises(Interrupted, match="stopped at step 18; continue with --resume"):
        train(settings, data=make_data(), out=tmp_path / "run", progress=SignalsAtTheEnd())
    again = train(settings, data=make_data(), out=tmp_path / "run", resume=True)
    assert same_weights(again.model, train(settings, data=make_data()).model)


def test_evaluation_every_n_epochs_and_always_at_the_end() -> None:
    result = fit(make_data(), eval_every=2, **{**PLAIN, "epochs": 5})
    assert ["test_accuracy" in r for r in result.history] == [False, True, False, True, True]


def test_training_metrics_are_those_of_the_batches_seen() -> None:
    torch.manual_seed(0)
    model = Linear()
    start = copy.deepcopy(model)
    data = make_data()
    result = fit(data, model=model, lr=0.0, **{**PLAIN, "epochs": 1})
    logits = start(data.train.images.float() / 255)
    record = result.history[0]
    assert record["train_loss"] == pytest.approx(F.cross_entropy(logits, data.train.labels).item(), rel=1e-6)
    assert record["train_accuracy"] == pytest.approx((logits.argmax(1) == data.train.labels).double().mean().item())
    assert record["step"] == math.ceil(96 / 16)


@pytest.mark.parametrize(("name", "value"), [("conflict", 0.1), ("image_size", 16), ("val", 0.2), ("labels", 10)])
def test_a_set_in_memory_is_taken_as_it_is(name: str, value: float) -> None:
    with pytest.raises(HoldfastError, match=f"^{name} {value}: not for a set in memory.*holdfast.data.load"):
        fit(make_data(), **PLAIN, **{name: value})


def test_pretraining_is_part_of_fit_and_refused_for_a_module_of_ones_own() -> None:
    settings = {**PLAIN, "epochs": 1, "lr": 0.0, "weight_decay": 0.0, "pretrain_for": 1}
    plain, started = (fit(make_data(), model="convnet", pretrain=way, **settings).model for way in ("none", "rotation"))
    assert not same_weights(plain, started)
    with pytest.raises(HoldfastError, match="pretrain rotation is for networks that are built by name.*Linear"):
        fit(make_data(), model=Linear(), pretrain="rotation", **PLAIN)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"data": None}, "data must be a name, a path, .* got NoneType"),
        ({"data": (torch.zeros(2), torch.zeros(2))}, r"have no labels; .* arrays \(images, labels\)"),
        ({"optimizer": "sgdd"}, "unknown optimizer 'sgdd'; did you mean 'sgd'"),
        ({"schedule": 7}, "unknown schedule 7; known: constant"),
        ({"batch_size": 0}, "batch_size must be >= 1, got 0"),
        ({"epochs": "many"}, "epochs must be a whole number, got 'many'"),
        ({"seed": None}, "seed must be a whole number, got None"),
    ],
)
def test_wrong_values_are_named(settings: dict[str, object], message: str) -> None:
    given = {"data": make_data(), **PLAIN, **settings}
    with pytest.raises(HoldfastError, match=message):
        fit(given.pop("data"), **given)  # type: ignore[arg-type]


def test_unknown_settings_and_devices_are_refused_with_a_hint() -> None:
    with pytest.raises(HoldfastError, match="unknown settings key 'epoch'; did you mean 'epochs'"):
        fit(make_data(), epoch=3)
    with pytest.raises(HoldfastError, match="unknown device 'gpu'"):
        fit(make_data(), device="gpu")
    if not torch.cuda.is_available():
        with pytest.raises(HoldfastError, match=r"device 'cuda' is not there \(0 GPUs found\); use --device cpu"):
            fit(make_data(), device="cuda")
        with pytest.raises(HoldfastError, match="capture on needs a CUDA device"):
            fit(make_data(), capture="on")


def test_epochs_record_how_bias_aligned_and_bias_conflicting_images_do() -> None:
    """As counted by hand, on the digits whose colour goes with their class in 95 % of the training images."""
    run = train(build(TrainSettings, {"data": "coloured-digits", "epochs": 3, "eval_every": 2, "device": "cpu"}))
    first, _, last = run.history
    assert "test_bias_aligned_accuracy" not in first
    test, usual = run.data.test, [run.data.train.groups[run.data.train.labels == c].mode().values for c in range(10)]
    assert test is not None
    with torch.no_grad():
        correct = run.model(test.read(torch.arange(len(test))).float() / 255).argmax(1) == test.labels
    aligned = test.groups == torch.stack(usual)[test.labels]
    assert last["test_bias_aligned_accuracy"] == pytest.approx(float(correct[aligned].double().mean()))
    assert last["test_bias_conflicting_accuracy"] == pytest.approx(float(correct[~aligned].double().mean()))
    assert last["test_bias_aligned_accuracy"] > last["test_bias_conflicting_accuracy"]


def test_without_groups_there_is_no_such_accuracy() -> None:
    run = train(build(TrainSettings, {"data": "digits", "epochs": 1, "device": "cpu"}))
    assert not [key for key in run.history[-1] if "bias" in key]
