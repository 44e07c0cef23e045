"""JTT: which samples the second model sees more often, how often, and what the user is told."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from holdfast.augment.basic import to_float
from holdfast.methods import State
from holdfast.methods.jtt import Jtt
from holdfast.parts import METHODS
from holdfast.settings import TrainSettings, build
from holdfast.train import train
from holdfast.types import Batch, Views
from tests.conftest import Heard, make_data, same_weights
from tests.methods.made import make_method

LABELS = torch.tensor([0, 1, 2, 0, 1, 2])


def predicting(classes: Tensor) -> Callable[[nn.Module], Tensor]:
    return lambda model: F.one_hot(classes, 3).float()


@pytest.mark.parametrize(("count", "times"), [("times", 5), ("extra", 6)])
def test_errors_are_shown_as_often_as_algorithm_2_says_or_as_the_authors_do(count: str, times: int) -> None:
    method, state = make_method(LABELS, name="jtt", up=5, count=count)
    predicted = LABELS.clone()
    predicted[[1, 4]] = 0
    said = method.begin(state, predicting(predicted))
    shown = method.repeats(state)
    assert shown is not None
    assert shown.tolist() == [1, times, 1, 1, times, 1]
    assert said == f"the first model gets 2 of 6 training samples wrong; each is now shown {times} times per epoch"


@pytest.mark.parametrize(("shift", "wrong", "remedy"), [(0, "right", "lower"), (1, "wrong", "raise")])
def test_an_error_set_of_none_or_all_is_said_with_what_to_change(shift: int, wrong: str, remedy: str) -> None:
    method, state = make_method(LABELS, name="jtt", up=5, first_epochs=7)
    said = method.begin(state, predicting((LABELS + shift) % 3))
    assert said is not None
    assert f"gets all 6 training samples {wrong}" in said
    assert f"{remedy} --method.first-epochs (now 7)" in said


@dataclass(frozen=True)
class Watched(Jtt):
    """Writes down what each stage shows, what was predicted, and what the first model was then."""

    def begin(self, state: State, predict: Callable[[nn.Module], Tensor]) -> str | None:
        state.seen = {**getattr(state, "seen", {}), state.stage.name: []}
        if state.stage.name == "second":
            state.predicted = predict(state.biased).cpu()
            state.first_model = {name: value.clone() for name, value in state.biased.state_dict().items()}
        return super().begin(state, predict)

    def views(self, batch: Batch, *, state: State, **others: Any) -> Any:
        state.seen[state.stage.name].append(Counter(batch.index.tolist()))
        return super().views(batch, state=state, **others)


def test_two_models_are_trained_and_errors_of_the_first_shown_to_the_second(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(METHODS._parts, "jtt", replace(METHODS["jtt"], made=Watched))
    data, heard = make_data(), Heard()
    data.train.labels[::12] = (data.train.labels[::12] + 1) % 3  # what no first model gets right
    settings = {
        "method": {"name": "jtt", "first_epochs": 2, "up": 3}, "model": "convnet", "epochs": 2, "batch_size": 16,
        "optimizer": "adam", "lr": 0.01, "crop": 1, "flip": True, "device": "cpu",
    }  # fmt: skip
    result = train(build(TrainSettings, settings), data=data, progress=heard)
    state = result.state
    clean = to_float(data.train.read(torch.arange(96)))
    state.biased.eval()
    with torch.no_grad():
        torch.testing.assert_close(state.predicted, state.biased(clean), msg="the pass that decides is not clean")
    wrong = state.predicted.argmax(1) != data.train.labels
    assert 0 < int(wrong.sum()) < 96, "the case decides nothing"
    epochs = {name: [sum(parts, Counter()) for parts in halves(steps)] for name, steps in state.seen.items()}
    once = dict.fromkeys(range(96), 1)
    assert epochs["first"] == [once, once]
    assert epochs["second"] == [{i: 3 if bad else 1 for i, bad in enumerate(wrong.tolist())}] * 2
    assert all(torch.equal(value, state.first_model[name]) for name, value in state.biased.state_dict().items())
    assert not same_weights(result.model, state.biased)
    assert any(f"gets {int(wrong.sum())} of 96 training samples wrong" in note for note in heard.notes)


@dataclass(frozen=True)
class Recorded(Jtt):
    """Writes down every forward pass of the first stage: which samples, what was predicted, in training mode or not."""

    def views(self, batch: Batch, *, state: State, **others: Any) -> Any:
        state.index = batch.index
        return super().views(batch, state=state, **others)

    def forward(self, model: nn.Module, views: Views, *, state: State) -> tuple[Tensor, ...]:
        logits = super().forward(model, views, state=state)
        if state.stage.name == "first":
            log = state.__dict__.setdefault("log", [])
            log.append((state.index, logits[0].argmax(1), model.training))
        return logits


@pytest.mark.parametrize("method", ["jtt", "jtt+biasadv"])
@pytest.mark.parametrize(("ascent", "passes"), [("none", 1), ("sam", 2)])
def test_the_errors_of_the_authors_are_those_of_the_last_first_epoch(
    method: str, ascent: str, passes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Their script writes predictions down as it trains, and takes those of the last epoch for the error set."""
    made = Recorded if method == "jtt" else type("Both", (Recorded, METHODS[method].made), {})
    monkeypatch.setitem(METHODS._parts, method, replace(METHODS[method], made=made))
    data = make_data()
    data.train.labels[::12] = (data.train.labels[::12] + 1) % 3
    values = {"name": method, "first_epochs": 2, "up": 3, "count": "extra", "errors": "during"}
    settings = {
        "method": values, "model": "convnet", "epochs": 1, "batch_size": 16, "optimizer": "adam", "lr": 0.01,
        "crop": 1, "device": "cpu", "ascent": ascent,
    }  # fmt: skip
    state = train(build(TrainSettings, settings), data=data).state
    assert all(training for _, _, training in state.log)
    last = state.log[len(state.log) // 2 :: passes]  # SAM's second pass is at moved weights
    index, predicted = (torch.cat(parts) for parts in list(zip(*last, strict=True))[:2])
    wrong = torch.empty(96, dtype=torch.bool).index_copy_(0, index, predicted != data.train.labels[index])
    assert state.shown.tolist() == [4 if bad else 1 for bad in wrong.tolist()]
    with torch.no_grad():
        after = state.biased.eval()(to_float(data.train.read(torch.arange(96)))).argmax(1) != data.train.labels
    assert not torch.equal(after, wrong), "the case decides nothing"


def halves(steps: list[Counter[int]]) -> list[list[Counter[int]]]:
    middle = len(steps) // 2
    return [steps[:middle], steps[middle:]]


@pytest.mark.parametrize(("epochs", "first"), [(200, 20), (20, 2), (5, 1), (1, 1), (0, 0)])
def test_the_first_model_is_trained_for_a_tenth_of_the_epochs(epochs: int, first: int) -> None:
    """0: not known yet. One that is trained to the end gets nothing wrong, and nothing would be shown more often."""
    assert [stage.epochs for stage in Jtt().stages(epochs)] == [first, epochs]
    assert Jtt(first_epochs=7).stages(epochs)[0].epochs == 7
