"""What a method and an ascent say that a step costs, against passes counted in the network as it trains."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from holdfast import parts
from holdfast.train import fit
from holdfast.train.step import Step
from tests.conftest import make_data
from tests.methods.made import make_method

METHODS = sorted(parts.METHODS)


class Counter:
    """Images that went forward and backward inside training steps, through any copy of the network."""

    def __init__(self) -> None:
        self.inside, self.images = False, 0.0

    def add(self, images: float) -> None:
        self.images += images * self.inside


COUNTER = Counter()


class CountBackward(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x.clone()

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:  # type: ignore[override]
        COUNTER.add(2 / 3 * len(grad))
        return grad


class Counted(nn.Module):
    """A pass forward counts a third, one backward two thirds."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Flatten(), nn.Linear(64, 8), nn.BatchNorm1d(8), nn.ReLU())
        self.head = nn.Linear(8, 3)

    def forward(self, x: Tensor) -> Tensor:
        COUNTER.add(len(x) / 3)
        features = self.body(x)
        out: Tensor = self.head(CountBackward.apply(features))
        return out


def counted(monkeypatch: pytest.MonkeyPatch, **settings: Any) -> tuple[list[dict[str, Any]], float]:
    """(records of the epochs, passes that were counted over the training set)."""
    COUNTER.images = 0.0
    step = Step.__call__

    def watched(self: Step, *batches: Any) -> None:
        COUNTER.inside = True
        step(self, *batches)
        COUNTER.inside = False

    monkeypatch.setattr(Step, "__call__", watched)
    torch.manual_seed(0)
    quick = {"epochs": 2, "batch_size": 16, "lr": 0.01, "device": "cpu", "eval_every": 0}
    history = fit(make_data(groups=2), model=Counted(), **{**quick, **settings}).history
    return [dict(record) for record in history], COUNTER.images / 96


@pytest.mark.parametrize("method", METHODS)
def test_an_epoch_takes_the_passes_that_it_records(method: str, monkeypatch: pytest.MonkeyPatch) -> None:
    fields = parts.METHODS[method].made.__dataclass_fields__
    given = {key: value for key, value in (("steps", 3), ("first_epochs", 1), ("up", 5)) if key in fields}
    records, found = counted(monkeypatch, method={"name": method, **given})
    assert sum(record["passes"] for record in records) == pytest.approx(found, rel=1e-6)
    shown = [record["images"] for record in records]
    assert shown[0] == 96
    if method == "jtt":
        assert records[-1]["passes"] == shown[-1] / 96 > 1, "errors are shown several times"


@pytest.mark.parametrize(
    "settings",
    [{"lam": 0.0, "steps": 2}, {"steps": 1}, {"perturbation": "model", "steps": 2}, {"perturbation": "noise"}],
    ids=str,
)
def test_passes_follow_the_settings(settings: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    records, found = counted(monkeypatch, method={"name": "lff+biasadv", **settings})
    assert sum(record["passes"] for record in records) == pytest.approx(found, rel=1e-6)


@pytest.mark.parametrize("method", ["erm", "lff"])
@pytest.mark.parametrize(
    "ascent", ["none", "sam", "asam", "fsam", {"name": "sam-large", "batches": 3}, "sam-full", "sam-noise", "sam-db"]
)
def test_an_ascent_takes_the_passes_that_it_says(ascent: Any, method: str, monkeypatch: pytest.MonkeyPatch) -> None:
    records, found = counted(monkeypatch, method=method, ascent=ascent, epochs=1)
    if method == "lff" and ascent not in ("none", "sam", "asam", "fsam"):
        # on other batches than the one that is trained on, a biased model goes forward only, which is not told apart
        assert found < records[0]["passes"] < 2 * found
    else:
        assert records[0]["passes"] == pytest.approx(found, rel=1e-6)


@pytest.mark.parametrize("method", METHODS)
def test_what_is_declared_is_the_cost_at_the_default_settings(method: str) -> None:
    labels = torch.arange(12) % 3
    made, state = make_method(labels, labels % 2, name=method, make_model=lambda: nn.Linear(1, 1))
    if method == "fixmatch":
        state.unlabelled = torch.zeros(1)
    assert sum(made.passes(state)) == pytest.approx(parts.METHODS[method].passes, abs=0.05)


@pytest.mark.parametrize("ascent", sorted(parts.ASCENTS))
def test_an_ascents_cost_is_the_declared_one(ascent: str) -> None:
    assert parts.ASCENTS[ascent].made().passes == parts.ASCENTS[ascent].passes
