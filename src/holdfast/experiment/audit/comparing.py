"""A model against others on the same samples, and against what was demanded of it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import torch

from holdfast.experiment.audit.gate import FailOn, Gate, judge
from holdfast.experiment.audit.opening import Model
from holdfast.fronts import Outcome
from holdfast.metrics import paired_difference
from holdfast.types import Finding

LEVEL: Final = 0.95


def against(model: Model, other: Model) -> list[Finding]:
    """How far a model leads another on the same samples, by a paired interval and McNemar's test."""
    theirs = dict(zip(other.ids(), other.subject.predictions.correct.tolist(), strict=True))
    pairs = [
        (mine, theirs[name])
        for name, mine in zip(model.ids(), model.subject.predictions.correct.tolist(), strict=True)
        if name in theirs
    ]
    where = {"against": other.name}
    if not pairs:
        reason = "the two models share no test sample"
        return [Finding("against", "lead", None, 0, where=where, evidence={"reason": reason})]
    first, second = (torch.tensor(side) for side in zip(*pairs, strict=True))
    pair = paired_difference(first, second, level=LEVEL)
    counts = {"only_this": int((first & ~second).sum()), "only_other": int((second & ~first).sum())}
    return [
        Finding("against", "lead", pair.lead, pair.n, pair.low, pair.high, where, {"level": LEVEL}, counts),
        Finding("against", "mcnemar-p", pair.p, pair.n, where=where, evidence={**counts, "reason": "a p-value"}),
    ]


def judge_all(
    gates: Sequence[Gate],
    fail_on: FailOn,
    models: Sequence[Model],
    found: Sequence[Sequence[Finding]],
    outcomes: Sequence[Outcome],
) -> list[dict[str, Any]]:
    """Every gate as plain values; one on a drop is judged against each of the other models."""
    states: dict[str, tuple[str, str]] = {o.front: (o.state, o.reason) for o in outcomes}
    judged = []
    for gate in gates:
        if gate.kind == "fail-under":
            judged.append(judge(gate, found[0], fail_on=fail_on, states=states))
            continue
        for other, theirs in zip(models[1:], found[1:], strict=True):
            judged.append(judge(gate, found[0], fail_on=fail_on, states=states, base=theirs, against=other.name))
    return judged
