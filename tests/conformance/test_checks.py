"""What every check must do. A new one is found by its registration."""

from __future__ import annotations

import copy
import json
import math
import re
import subprocess
import sys
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from holdfast.audits.checks.attacks import AttackBudget as Budget
from holdfast.audits.checks.groups.group_accuracy import TAKEN
from holdfast.audits.measuring import CheckOutcome as Outcome
from holdfast.audits.measuring import measure
from holdfast.audits.sample_passes import SamplePass, joined
from holdfast.audits.subject import Subject
from holdfast.data import ArraySplit, Dataset
from holdfast.parts import CHECKS
from holdfast.types import Needs, Unit
from tests.conftest import make_data, same_weights

LITTLE: dict[str, dict[str, Any]] = {
    "attacks": {"images": 8, "budget": Budget(8, 3, 3, 4, 4, 4, 16, 1, "convnet"), "transfer": False},
    "corruptions": {"images": 8},
    "curvature": {"images": 8},
    "saliency": {"images": 8},
}
"""Fewer images and steps where a check can do with them."""
NO_INTERVAL = (Unit.COUNT, Unit.FLAG, Unit.NUMBER)
"""Counts, verdicts and eigenvalues, whose error is a residual in their evidence: no sampling interval need apply."""
MEASURES = {m.name: m for part in CHECKS.values() for m in part.measures}


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
    return measure(name, subject, CHECKS[name].made(**LITTLE.get(name, {})))


def plain(outcome: Outcome) -> str:
    return json.dumps([f.to_json() for f in outcome.findings], sort_keys=True)


def check_numbers(outcome: Outcome) -> None:
    """Every number has n and an interval around it, or a reason not to."""
    for f in outcome.findings:
        assert f.check == outcome.name
        json.dumps(f.to_json(), allow_nan=False)
        if f.value is None:
            assert f.n == 0
            continue
        assert math.isfinite(f.value)
        assert f.n > 0, f
        if f.low is None or f.high is None:
            allowed = MEASURES[f.name].unit in NO_INTERVAL or "reason" in f.evidence or f.n == 1
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
        assert CHECKS[name].made.__module__.split(".")[:4] == ["holdfast", "audits", "checks", name]

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

    def test_a_model_without_gradients_is_not_taken_for_robust(self, name: str) -> None:
        """Measured where no gradient is needed; where one is, not applicable, or said not to be trusted."""

        class Blind(nn.Module):
            def forward(self, x: Tensor) -> Tensor:
                return x.detach().flatten(1)[:, :3]

        outcome = look(name, make_data(groups=2), Blind())
        if Needs.GRADIENTS not in CHECKS[name].needs:
            assert outcome.state == "measured", outcome.reason
        elif outcome.state == "measured":
            assert [f.value for f in outcome.findings if f.name == "trusted"] == [0.0]
        else:
            assert outcome.state == "not applicable", outcome.reason
            assert outcome.reason

    def test_it_declares_what_it_measures(self, name: str) -> None:
        part = CHECKS[name]
        assert part.title
        assert part.about.endswith(".")
        own = {m.name for m in part.measures}
        found = {f.name for f in look(name, make_data(groups=2)).findings if f.value is not None}
        assert found <= own
        assert all(re.fullmatch(r"[a-z][a-z0-9_]*", measure) for measure in own)
        if part.share:
            settings = part.made()
            assert settings.passes("cpu") > 0
            assert hasattr(settings, "images")
            assert settings.usual_images("cpu") is None or settings.usual_images("cpu") >= 1


def test_measures_are_called_once() -> None:
    """So that a gate, a column and a finding can have the same name."""
    names = [m.name for part in CHECKS.values() for m in part.measures]
    assert len(names) == len(set(names))
    assert {m.drop for part in CHECKS.values() for m in part.measures if m.drop} <= set(names)


def test_declarations_do_not_wait_for_torch() -> None:
    code = "import sys; from holdfast.parts import CHECKS; print(*CHECKS); assert 'torch' not in sys.modules"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == [*CHECKS]


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


SHARED = [name for name, part in CHECKS.items() if hasattr(part.made, "sample_passes")]


@pytest.mark.parametrize("name", SHARED)
def test_blocks_of_a_pass_do_not_depend_on_who_computes_them(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Computed from the last to the first, each by another process's copy, they are the rows of one run through all."""
    monkeypatch.setattr("holdfast.audits.checks.attacks.attack_bench.TOGETHER", 4 * 64)
    monkeypatch.setattr("holdfast.audits.checks.corruptions.corrupted_accuracy.TOGETHER", 1)
    monkeypatch.setattr("holdfast.audits.checks.ood.ood_scores.BATCH", 4)
    data = make_data(16, 3, test=40)
    check = CHECKS[name].made(**LITTLE.get(name, {}) | ({"images": 24} if name == "corruptions" else {}))
    weights = torch.randn(3, 64, generator=torch.Generator().manual_seed(0))
    model = nn.Sequential(nn.Flatten(), nn.Linear(64, 3))  # a little noise changes what it says
    model.load_state_dict({"1.weight": weights - weights.mean(1, keepdim=True), "1.bias": torch.zeros(3)})

    def passes() -> dict[str, SamplePass]:
        subject = Subject(model.eval(), data, torch.device("cpu"), workers=0, batch_size=4)
        return {one.name: one for one in check.sample_passes(subject)}

    whole = {one.name: one.all_rows() for one in passes().values()}
    assert whole
    for title, rows in whole.items():
        count = passes()[title].blocks
        parts = [joined(passes()[title].compute([block])) for block in reversed(range(count))][::-1]
        assert count > 1 or len(passes()[title].positions) <= 4
        for column, values in rows.items():
            assert len(values) == len(passes()[title].positions)
            assert torch.equal(torch.cat([part[column] for part in parts]), values), (title, column)
