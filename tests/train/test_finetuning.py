"""Freezing, layer-wise decay, early stopping, class weights and the learning-rate finder, against references."""

from __future__ import annotations

import copy
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import timm
import torch
import torch.nn.functional as F
from sklearn.utils.class_weight import compute_class_weight
from timm.optim import param_groups_layer_decay
from torch import Tensor, nn

from holdfast.cli import main
from holdfast.errors import HoldfastError
from holdfast.methods.erm import Erm
from holdfast.models.heads import layer_scales
from holdfast.optim import build_optimizer, set_option
from holdfast.rng import derive
from holdfast.settings import OptimizerSettings, TrainSettings, build
from holdfast.train import find_lr, fit
from holdfast.train.api import train
from holdfast.train.progress import Progress
from holdfast.train.rate_finder import curve_of, find_rate
from holdfast.train.step_parts import class_weighted, class_weights
from holdfast.types import View, Views
from tests.conftest import flat_weights, make_data, same_weights
from tests.train.plain import PLAIN, Linear

EVERYTHING = {
    "resized_crop": 0.4, "flip": True, "auto_augment": "randaugment", "color_jitter": [0.3, 0.3, 0.3, 0.1],
    "erasing": 0.5, "layer_decay": 0.7, "class_weights": "balanced",
}  # fmt: skip


class Deep(nn.Module):
    """Normalisation, dropout and a head."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Dropout(0.5), nn.Conv2d(4, 4, 3))
        self.head = nn.Linear(4, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.body(x).mean((2, 3)))


class Noted(Progress):
    def __init__(self) -> None:
        self.notes: list[str] = []

    def note(self, text: str) -> None:
        self.notes.append(text)


def test_a_frozen_backbone_is_a_linear_fit_of_its_features() -> None:
    """Weights and statistics of the body stay, and the head learns what it would on features made beforehand."""
    torch.manual_seed(0)
    model = Deep()
    before = copy.deepcopy(model)
    data = make_data()
    with torch.no_grad():
        features = before.eval().body(data.train.images.float() / 255).mean((2, 3))
    head = copy.deepcopy(before.head)
    optimizer = torch.optim.SGD(head.parameters(), lr=0.1, momentum=0.9, weight_decay=1e-3)
    for epoch in range(3):
        order = torch.randperm(len(features), generator=torch.Generator().manual_seed(derive(0, f"order/0/{epoch}")))
        for index in order.split(16):
            optimizer.zero_grad()
            F.cross_entropy(head(features[index]), data.train.labels[index]).backward()
            optimizer.step()
    fit(data, model=model, lr=0.1, freeze="backbone", **PLAIN)
    assert same_weights(model.body, before.body)  # buffers too
    torch.testing.assert_close(flat_weights(model.head), flat_weights(head), rtol=1e-4, atol=1e-5)
    assert all(p.requires_grad for p in model.parameters())


@pytest.mark.parametrize("method", ["lff", "jtt", "erm+biasadv"])
def test_auxiliary_networks_are_frozen_too(method: str) -> None:
    torch.manual_seed(0)
    model = Deep()
    before = copy.deepcopy(model)
    result = fit(make_data(), model=model, method=method, freeze="backbone", layer_decay=0.5, **{**PLAIN, "epochs": 1})
    assert same_weights(result.model.body, before.body)
    assert same_weights(result.state.biased.body, before.body)
    assert not same_weights(result.state.biased.head, before.head)


def test_a_fresh_network_is_not_frozen() -> None:
    with pytest.raises(HoldfastError, match="freeze backbone would train a head on the random features"):
        fit(make_data(), freeze="backbone", **PLAIN)


@pytest.mark.parametrize("name", ["vit_tiny_patch16_224", "resnet18"])
def test_layers_decay_as_timm_decays_them(name: str) -> None:
    model = timm.create_model(name, num_classes=3)
    expected = {}
    names = {id(p): n for n, p in model.named_parameters()}
    for group in param_groups_layer_decay(model, layer_decay=0.75):
        expected |= {names[id(p)]: group["lr_scale"] for p in group["params"]}
    assert layer_scales(model, 0.75) == pytest.approx(expected)
    wrapped = layer_scales(nn.Sequential(nn.Identity(), model), 0.75)
    assert wrapped == pytest.approx({f"1.{n}": scale for n, scale in expected.items()})


def test_other_networks_have_at_most_twelve_depths_below_the_head() -> None:
    blocks = [nn.Sequential(nn.Linear(2, 2), nn.LayerNorm(2)) for _ in range(30)]
    scales = layer_scales(nn.Sequential(*blocks, nn.Linear(2, 3)), 0.5)
    assert sorted(set(scales.values())) == [0.5**k for k in range(12, -1, -1)]
    assert list(scales.values()) == sorted(scales.values())
    assert scales["30.weight"] == 1.0


@pytest.mark.parametrize("ascent", ["none", "sam"])
def test_training_with_layer_decay_equals_groups_by_hand(ascent: str) -> None:
    """SGD's first step is the rate times the gradient, so steps with and without decay differ by the scales alone."""
    torch.manual_seed(0)
    start = nn.Sequential(nn.Flatten(), nn.Linear(64, 8), nn.Tanh(), nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, 3))
    moved = {}
    for decay in (1.0, 0.5):
        model = copy.deepcopy(start)
        options: dict[str, Any] = {**PLAIN, "epochs": 1, "batch_size": 96, "weight_decay": 0.0}
        fit(make_data(), model=model, lr=0.1, layer_decay=decay, ascent=ascent, **options)
        moved[decay] = {n: p - q for (n, p), q in zip(model.named_parameters(), start.parameters(), strict=True)}
    for name, scale in (("1.weight", 0.25), ("3.bias", 0.5), ("5.weight", 1.0)):
        torch.testing.assert_close(moved[0.5][name], scale * moved[1.0][name], rtol=1e-3, atol=1e-6)


def test_schedules_keep_the_scales() -> None:
    named = list(nn.Linear(2, 2).named_parameters())
    optimizer = build_optimizer(OptimizerSettings("sgd", lr=0.4), named, scales={"weight": 0.5})
    assert [group["lr"] for group in optimizer.param_groups] == [0.2, 0.4]
    set_option(optimizer, "lr", 0.1)
    assert [group["lr"] for group in optimizer.param_groups] == [0.05, 0.1]


def with_val() -> Any:
    data = make_data()
    return replace(data, val=data.test)


def stopping(monkeypatch: pytest.MonkeyPatch, scores: list[float]) -> None:
    """Let the epochs of a training have these scores on the validation set."""
    left = {"scores": list(scores)}

    def next_score(rule: str, seen: object) -> float:
        return left["scores"].pop(0)

    monkeypatch.setattr("holdfast.train.engine.selection_score", next_score)


def test_training_stops_when_val_stops_improving_and_keeps_the_best(monkeypatch: pytest.MonkeyPatch) -> None:
    stopping(monkeypatch, [0.5, 0.7, 0.6, 0.7, 0.65, 0.9])
    torch.manual_seed(0)
    start, shown = Linear(), Noted()
    model, two_epochs = copy.deepcopy(start), copy.deepcopy(start)
    settings = build(TrainSettings, {**PLAIN, "epochs": 20, "lr": 0.1, "early_stopping": 3})
    result = train(settings, data=with_val(), model=model, progress=shown)
    assert len(result.history) == 5
    assert result.settings.loop.select == "val-average"
    fit(make_data(), model=two_epochs, lr=0.1, **{**PLAIN, "epochs": 2})
    assert same_weights(model, two_epochs)
    said = "stopped after epoch 5 of 20: no better for 3 epochs; kept the weights of epoch 2, the best by val-average"
    assert f"{said} (70.0 %)" in shown.notes


def test_a_stopped_training_is_over_when_it_is_resumed(monkeypatch: pytest.MonkeyPatch, tmp_path) -> None:
    stopping(monkeypatch, [0.5, 0.4, 0.3])
    options = {**PLAIN, "epochs": 9, "lr": 0.1, "early_stopping": 2, "checkpoint_every": 5, "out": tmp_path / "run"}
    torch.manual_seed(0)
    start = Linear()
    first, again = copy.deepcopy(start), copy.deepcopy(start)
    fit(with_val(), model=first, **options)
    result = fit(with_val(), model=again, resume=True, **options)
    assert len(result.history) == 3
    assert same_weights(first, again)


def test_the_loss_on_val_is_a_rule_too() -> None:
    result = fit(with_val(), model=Linear(), lr=3.0, select="val-loss", **{**PLAIN, "epochs": 6})
    with torch.no_grad():
        test = make_data().test
        loss = float(F.cross_entropy(result.model(test.images.float() / 255), test.labels))
    assert loss == pytest.approx(min(record["val_loss"] for record in result.history), rel=1e-4)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"early_stopping": 3}, "early_stopping 3 needs a validation set; hold one out with --val 0.1"),
        ({"early_stopping": 3, "eval_every": 0}, "early_stopping 3 needs evaluations on the way; give eval_every 1"),
        ({"early_stopping": 3, "select": "oracle-test"}, "must not look at the test set"),
        (
            {"class_weights": [1.0, 2.0]},
            r"class_weights has 2 numbers, and the data has 3 classes \(.*\); give one",
        ),
        ({"class_weights": "even"}, r"class_weights must be balanced or numbers >= 0, got \['even'\]"),
        ({"class_weights": [1, -1, 1]}, r"class_weights must be balanced or numbers >= 0, got \[1.0, -1.0, 1.0\]"),
        ({"class_weights": [0, 0, 0]}, "leaves no training sample that counts"),
        ({"layer_decay": 0.0}, r"layer_decay must be in \(0, 1\], got 0"),
    ],
)
def test_what_cannot_be_is_refused(options: dict[str, object], message: str) -> None:
    with pytest.raises(HoldfastError, match=message):
        fit(make_data(), model=Linear(), **{**PLAIN, **options})


def test_balanced_weights_are_those_of_scikit_learn() -> None:
    labels = torch.tensor([0] * 50 + [1] * 7 + [2] * 3)
    expected = compute_class_weight("balanced", classes=np.arange(3), y=labels.numpy())
    found = class_weights(["balanced"], labels, ["a", "b", "c"])
    np.testing.assert_allclose(found, expected, rtol=1e-6)
    numbers = class_weights([2.0, 1.0, 4.0], labels, ["a", "b", "c"])
    assert numbers is not None
    torch.testing.assert_close(numbers / numbers[1], torch.tensor([2.0, 1.0, 4.0]))
    assert float(numbers[labels].mean()) == pytest.approx(1)
    empty = class_weights(["balanced"], labels, ["a", "b", "c", "never seen"])
    torch.testing.assert_close(empty, torch.tensor([*expected.tolist(), 0.0]).float())


def test_class_weights_are_torchs_weighted_cross_entropy() -> None:
    """On whole batches the weights' mean is 1, so torch's weighted mean is ours."""
    torch.manual_seed(0)
    ours = Linear()
    theirs, data, weight = copy.deepcopy(ours), make_data(), torch.tensor([1.0, 3.0, 0.5])
    optimizer = torch.optim.SGD(theirs.parameters(), lr=0.1, momentum=0.9)
    for _ in range(3):
        optimizer.zero_grad()
        F.cross_entropy(theirs(data.train.images.float() / 255), data.train.labels, weight=weight).backward()
        optimizer.step()
    options = {**PLAIN, "batch_size": len(data.train), "weight_decay": 0.0}
    fit(data, model=ours, lr=0.1, class_weights=weight.tolist(), **options)
    torch.testing.assert_close(flat_weights(ours), flat_weights(theirs), rtol=1e-5, atol=1e-6)


def test_mixed_labels_are_weighted_as_torch_weighs_them() -> None:
    weights, logits = torch.tensor([1.0, 3.0, 0.5]), torch.randn(5, 3, generator=torch.Generator().manual_seed(0))
    labels = torch.rand(5, 3, generator=torch.Generator().manual_seed(1)).softmax(1)
    (view,) = class_weighted(Views((View(torch.zeros(5), labels),)), weights).items
    expected = F.cross_entropy(logits, labels, weight=weights)
    torch.testing.assert_close(Erm().loss((logits,), Views((view,))), expected)


@pytest.mark.parametrize("method", ["lff", "alps", "mixup", "group-dro", "vat", "label-smoothing"])
def test_a_class_that_counts_nothing_teaches_nothing(method: str) -> None:
    """A training in which class 2 weighs 0 never learns to say it, whatever the method."""
    torch.manual_seed(0)
    model = Linear()
    start = copy.deepcopy(model)
    data = make_data(groups=2)
    fit(data, model=model, method=method, class_weights=[1, 1, 0], lr=0.5, **{**PLAIN, "epochs": 8})
    with torch.no_grad():
        before, after = (net(data.train.images / 255).softmax(1)[:, 2].mean() for net in (start, model))
    assert float(after) < 0.5 * float(before)


@pytest.mark.parametrize("method", ["erm", "lff", "mixup"])
def test_resuming_is_exact_with_everything_on(method: str, tmp_path) -> None:
    torch.manual_seed(0)
    start = Deep()
    whole, parts = copy.deepcopy(start), copy.deepcopy(start)
    options: dict[str, Any] = {**PLAIN, **EVERYTHING, "optimizer": "adamw", "method": method, "val": None}
    del options["val"]
    fit(make_data(), model=whole, out=tmp_path / "whole", **options)

    class Stop(Exception):
        pass

    class StopAfterOne(Progress):
        def epoch(self, record: object, epochs: int) -> None:
            if record["epoch"] == 2:  # type: ignore[index]
                raise Stop

    settings = build(TrainSettings, options)
    with pytest.raises(Stop):
        train(settings, data=make_data(), model=parts, out=tmp_path / "parts", progress=StopAfterOne())
    again = copy.deepcopy(start)
    train(settings, data=make_data(), model=again, out=tmp_path / "parts", resume=True)
    assert same_weights(whole, again)


def test_off_is_what_it_was() -> None:
    """With everything at its default the optimiser has one group, no view has a weight, and no note is made."""
    shown = Noted()
    settings = build(TrainSettings, PLAIN | {"optimizer": "sgd", "lr": 0.05})
    train(settings, data=make_data(), model=Linear(), progress=shown)
    assert shown.notes == []
    assert len(build_optimizer(settings.optimizer, Linear().named_parameters()).param_groups) == 1


def test_the_rate_found_is_below_where_a_quadratic_diverges() -> None:
    """Descent on a·w²/2 shrinks the loss for rates below 2/a alone, and fastest at 1/a."""
    for a in (0.5, 20.0, 300.0):
        w, losses = 1.0, []
        rates = [1e-6 * 1e7 ** (i / 99) for i in range(100)]
        for rate in rates:
            losses.append(0.5 * a * w * w)
            if losses[-1] > 4 * losses[0]:
                break
            w -= rate * a * w
        found = curve_of(rates[: len(losses)], losses)
        assert 0.01 / a < found.suggestion < 2 / a
        assert found.suggestion < found.lowest


def test_the_finder_suggests_a_rate_that_trains_and_leaves_the_model_alone() -> None:
    torch.manual_seed(0)
    model = Linear()
    before = copy.deepcopy(model)
    settings = build(TrainSettings, {**PLAIN, "epochs": 5})
    found = find_rate(settings, data=make_data(), model=model)
    assert same_weights(model, before)
    assert len(found.rates) == len(found.losses) > 30
    text = str(found)
    assert f"suggested: --lr {found.suggestion:.2g}" in text
    assert text.count("<- suggested") == 1
    losses = {
        rate: fit(make_data(), model=copy.deepcopy(before), lr=rate, **{**PLAIN, "epochs": 5}).history[-1]["train_loss"]
        for rate in (found.suggestion, found.suggestion / 100)
    }
    assert losses[found.suggestion] < 0.9 * losses[found.suggestion / 100]
    assert math.isfinite(losses[found.suggestion])


@pytest.mark.slow
def test_the_command_prints_what_the_function_finds_and_writes_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    words = ["--data", "digits", "--optimizer", "adamw", "--batch-size", "8", "--device", "cpu", "--find-lr", "--quiet"]
    assert main(["train", *words]) == 0
    printed = capsys.readouterr().out
    assert printed == f"{find_lr('digits', optimizer='adamw', batch_size=8, device='cpu')}\n"
    assert list(tmp_path.iterdir()) == []
    assert main(["train", *words, "--resume", "--out", "runs/x"]) == 2


def test_losses_that_only_rise_give_no_suggestion() -> None:
    with pytest.raises(HoldfastError, match="no learning rate can be suggested: the loss only rises"):
        curve_of([10.0**k for k in range(-5, 7)], [float(k) for k in range(12)])


def test_training_from_a_librarys_file_normalises_as_the_library_does(tmp_path: Path) -> None:
    torch.save(timm.create_model("test_resnet").state_dict(), tmp_path / "w.pth")
    made = {"model": "timm:test_resnet", "epochs": 1, "eval_every": 0, "device": "cpu", "progress": False}
    data = make_data(32, channels=3)
    assert fit(data, weights=str(tmp_path / "w.pth"), **made).model.mean.flatten().tolist() == [0.5] * 3
    assert fit(data, **made).model.mean.flatten().tolist() != [0.5] * 3
