"""A training whose numbers are no longer finite ends, and leaves only what is."""

from __future__ import annotations

import json
import math

import pytest
import torch
from torch import Tensor

from holdfast.errors import HoldfastError, Interrupted
from holdfast.settings import TrainSettings, build
from holdfast.train import fit, train
from tests.conftest import SignalAt, make_data
from tests.train.plain import PLAIN, Linear


class Explodes(Linear):
    """The gradient of one step is infinite, though its loss is not; or the logits outside of training are."""

    def __init__(self, at: int = 0, *, outside: float = 1.0) -> None:
        super().__init__()
        self.left, self.outside = at, outside

    def forward(self, x: Tensor) -> Tensor:
        logits = super().forward(x)
        if not self.training:
            return logits * self.outside
        self.left -= 1
        if self.left == 0:
            logits.register_hook(lambda gradient: gradient * math.inf)
        return logits


@pytest.mark.parametrize("step", [12, 18])
@pytest.mark.parametrize("more", [{}, {"ema": 0.5}, {"eval_every": 0}, {"checkpoint_every": 2}])
def test_a_last_step_that_diverges_is_neither_saved_nor_the_end(step: int, more: dict[str, float], tmp_path) -> None:
    """Six steps an epoch, three epochs: the last step of an epoch, whose loss is still finite, ruins the weights."""
    out = tmp_path / "run"
    with pytest.raises(HoldfastError, match=rf"the weights are not finite after step {step};.*lower --lr"):
        fit(make_data(), model=Explodes(step), out=out, **PLAIN, **more)
    good = step - 6 if more.get("checkpoint_every") != 2 else (step - 6) // 12 * 12
    kept = sorted(p.name for p in out.glob("checkpoint/*"))
    assert kept[-1:] == ([f"step-{good:09d}"] if good else [])
    for path in out.glob("checkpoint/*/state.pt"):
        assert all(v.isfinite().all() for v in torch.load(path, weights_only=True)["model"].values())
    lines = (out / "metrics.jsonl").read_text().splitlines() if good else []
    assert len(lines) == (step // 6 - 1 if good else 0)
    for line in lines:
        json.loads(line, parse_constant=lambda word: pytest.fail(f"{word} is no JSON"))


def test_a_signal_does_not_save_weights_that_are_not_finite(tmp_path) -> None:
    settings = build(TrainSettings, PLAIN)
    said = "interrupted: the weights are not finite after step 8; the last good checkpoint"
    with pytest.raises(Interrupted, match=said):  # a comparison must not go on to its next training
        train(settings, data=make_data(), model=Explodes(8), out=tmp_path / "run", progress=SignalAt(8))
    assert [p.name for p in (tmp_path / "run/checkpoint").iterdir()] == ["step-000000006"]


class Masked(Linear):
    """As attention does it, with -inf where nothing may be seen; and a word of its own in its state."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("mask", torch.tensor([0.0, -math.inf]))

    def get_extra_state(self) -> str:
        return "own"

    def set_extra_state(self, state: str) -> None:
        assert state == "own"


def test_a_buffer_that_is_infinite_by_right_is_no_divergence(tmp_path) -> None:
    assert len(fit(make_data(), model=Masked(), out=tmp_path / "run", **PLAIN).history) == PLAIN["epochs"]


@pytest.mark.parametrize("outside", [math.inf, math.nan])
def test_a_test_loss_that_is_not_finite_ends_the_training(outside: float) -> None:
    with pytest.raises(HoldfastError, match="the loss on the test set is (nan|inf) after step 6; no checkpoint"):
        fit(make_data(), model=Explodes(outside=outside), **PLAIN)
