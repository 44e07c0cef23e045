"""What every check must do. A new one is found by its registration."""

from __future__ import annotations

import copy
import json
import math
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from holdfast.audits.checking import CHECKS, Outcome, measure
from holdfast.audits.checks.attacks import Budget
from holdfast.audits.checks.groups import TAKEN
from holdfast.audits.subject import Subject
from holdfast.data import ArraySplit, Dataset
from tests.conftest import make_data, same_weights

LITTLE: dict[str, dict[str, Any]] = {
    "attacks": {"images": 8, "budget": Budget(8, 3, 3, 4, 4, 4, 16, 1, "convnet"), "black_box": False},
    "corruptions": {"images": 8},
    "curvature": {"images": 8},
    "saliency": {"images": 8},
}
"""Fewer images and steps where a check can do with them."""
WITHOUT_INTERVAL = {
    "slices": {"confirmed_slices"},
    "attacks": {"trust_check", "trusted"},
    "curvature": {"top_eigenvalue", "fifth_eigenvalue", "eigenvalue_ratio"},
}
"""Counts, verdicts and eigenvalues, whose error is a residual in their evidence: no sampling interval applies."""


class Net(nn.Module):
    """A little network with batch statistics and dropout: what an audit could disturb."""

    def __init__(self, channels: int, classes: int) -> None:
        super().__init__()
        self.conv = nn.Conv2d(channels, 4, 3, padding=1)
        self.norm = nn.BatchNorm2d(4)
        self.drop = nn.Dropout(0.5)
        self.fc = nn.Linear(4 * 8, classes)

    def forward(self, x: Tensor) -> Tensor:
        hidden = self.norm(self.conv(x)).tanh().mean(3)
        logits: Tensor = self.fc(self.drop(hidden.flatten(1)))
        return logits


def net(data: Dataset) -> nn.Module:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(3)
        return Net(data.shape[0], data.num_classes)


def look(name: str, data: Dataset, model: nn.Module | None = None, *, seed: int = 0) -> Outcome:
    model = net(data).eval() if model is None else model
    subject = Subject(model, data, torch.device("cpu"), workers=0, batch_size=16, seed=seed)
    return measure(name, subject, LITTLE.get(name))


def plain(outcome: Outcome) -> str:
    return json.dumps([f.to_json() for f in outcome.findings], sort_keys=True)


def check_numbers(outcome: Outcome) -> None:
    """Every number has n and an interval around it, or a reason not to."""
    for f in outcome.findings:
        assert f.check == outcome.check
        json.dumps(f.to_json(), allow_nan=False)
        if f.value is None:
            assert f.n == 0
            continue
        assert math.isfinite(f.value)
        assert f.n > 0, f
        if f.low is None or f.high is None:
            allowed = f.name in WITHOUT_INTERVAL.get(f.check, set()) or "reason" in f.evidence or f.n == 1
            assert allowed, f
        else:
            assert f.low - 1e-9 <= f.value <= f.high + 1e-9, f
    parts = [(f.name, tuple(f.where.items())) for f in outcome.findings]
    assert len(parts) == len(set(parts))
    if outcome.findings[0].check == "groups":
        assert {key for f in outcome.findings for key in f.where} <= {*TAKEN, "group"}, "a column could be called so"


@pytest.mark.parametrize("name", CHECKS)
class TestCheck:
    def test_it_lives_in_a_file_or_package_of_its_name(self, name: str) -> None:
        assert CHECKS[name].__module__.split(".")[:4] == ["holdfast", "audits", "checks", name]

    def test_numbers_have_n_and_an_interval_or_a_reason(self, name: str) -> None:
        outcome = look(name, make_data(groups=2))
        assert outcome.state == "measured", outcome.reason
        check_numbers(outcome)

    def test_the_model_is_left_as_it_was_found(self, name: str) -> None:
        data = make_data(groups=2)
        model = net(data).train()
        model.norm.eval()  # type: ignore[union-attr]
        before, modes = copy.deepcopy(model), [m.training for m in model.modules()]
        state = torch.get_rng_state()
        look(name, data, model)
        assert same_weights(model, before)
        assert [m.training for m in model.modules()] == modes
        assert [p.requires_grad for p in model.parameters()] == [p.requires_grad for p in before.parameters()]
        assert all(p.grad is None for p in model.parameters())
        assert not any(m._forward_hooks or m._forward_pre_hooks or m._backward_hooks for m in model.modules())
        assert torch.equal(torch.get_rng_state(), state)

    def test_a_seed_repeats_it(self, name: str) -> None:
        data = make_data(groups=2)
        first, again = look(name, data, seed=5), look(name, data, seed=5)
        assert plain(first) == plain(again)

    @pytest.mark.parametrize(
        "case", ["two classes", "colour", "no groups", "no training split", "one image", "constant"]
    )
    def test_other_data_is_measured_or_said_not_to_apply(self, name: str, case: str) -> None:
        outcome = look(name, CASES[case])
        assert outcome.state in ("measured", "not applicable"), outcome.reason
        if outcome.state == "not applicable":
            assert outcome.reason
        check_numbers(outcome)

    def test_a_model_without_gradients_does_not_take_the_process_along(self, name: str) -> None:
        class Blind(nn.Module):
            def forward(self, x: Tensor) -> Tensor:
                return x.detach().flatten(1)[:, :3]

        assert look(name, make_data(groups=2), Blind()).state in ("measured", "not applicable", "crashed")


def _cases() -> dict[str, Dataset]:
    usual = make_data(groups=2)
    assert usual.test is not None
    constant = make_data(groups=2)
    assert isinstance(constant.test, ArraySplit)
    blank = replace(constant.test, images=torch.zeros_like(constant.test.images))
    return {
        "two classes": make_data(classes=2, groups=2),
        "colour": make_data(channels=3),
        "no groups": make_data(),
        "no training split": replace(usual, train=usual.train.subset(torch.arange(0))),
        "one image": replace(usual, test=usual.test.subset(torch.arange(1))),
        "constant": replace(constant, test=blank),
    }


CASES = _cases()
