"""Gates for pipelines: what a model must reach, and whether it does.

What a gate may name follows from the measures that checks declare. Imports no torch, so that a mistyped name is refused
before anything runs.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Literal

from holdfast.audits.check_settings import make_checks
from holdfast.errors import HoldfastError, require, require_known, unknown
from holdfast.parts import CHECKS
from holdfast.types import Finding, Measure, Note

FailOn = Literal["value", "low"]
Kind = Literal["fail-under", "max-drop"]
Gates = Sequence[str] | Mapping[str, float]
EXACT: Final = 1e-12
"""0.9 - 0.89 is a little more than 0.01 in binary; nobody means that."""


@dataclass(frozen=True)
class GateTarget:
    check: str
    name: str
    where: Mapping[str, str] = field(default_factory=dict)

    def find(self, findings: Iterable[Finding]) -> dict[str, Finding]:
        """What was measured, by column of groups, since the gate must hold for each; "" is none."""
        own = (f for f in findings if (f.check, f.name) == (self.check, self.name) and f.value is not None)
        return {f.where.get("column", ""): f for f in own if {**f.where, "column": ""} == {**self.where, "column": ""}}


def gate_names(checks: Mapping[str, Any]) -> list[str]:
    """What a gate may be set on, with these settings of the checks; all are shares, the higher the better."""
    names = []
    for check, measure in gated_measures():
        parts = checks[check].gate_parts() if measure.part else ()
        names += [measure.name] if not measure.part or measure.usual_part in parts else []
        names += [f"{measure.name}@{one}" for one in parts if one != measure.usual_part]
    return names


def gated_measures() -> list[tuple[str, Measure]]:
    """The measures that declare to be gates, each with its check."""
    return [(check, measure) for check, part in CHECKS.items() for measure in part.measures if measure.gate]


def target_of(name: str) -> GateTarget:
    """The finding behind the name of a gate.

    >>> target_of("robust_accuracy@8/255")
    GateTarget(check='attacks', name='robust_accuracy', where={'radius': '8/255'})
    """
    measure_name, _, part = name.partition("@")
    for check, measure in gated_measures():
        if measure.name == measure_name:
            return GateTarget(check, measure_name, {measure.part: part or measure.usual_part} if measure.part else {})
    raise unknown("gate", name, [measure.name for _, measure in gated_measures()])


@dataclass(frozen=True)
class Gate:
    """One demand: a share to reach, or how much lower than another model's it may be."""

    kind: Kind
    name: str
    threshold: float


@dataclass(frozen=True)
class Number:
    """A share or a drop with its interval; low and high are None where it has none."""

    value: float
    low: float | None
    high: float | None
    n: int


def parse_gates(
    fail_under: Gates, max_drop: Gates, *, against: bool, checks: Mapping[str, Any] | None = None
) -> tuple[Gate, ...]:
    """Gates from words such as ``worst_group_accuracy=0.7`` (hyphens do too) or from a mapping.

    checks: their settings, which decide what a gate may name after an @; those by default.

    >>> parse_gates(["worst-group-accuracy=0.7"], {}, against=False)
    (Gate(kind='fail-under', name='worst_group_accuracy', threshold=0.7),)
    """
    require(not max_drop or against, "--max-drop compares with another model; name it with --against")
    known = gate_names(make_checks({}) if checks is None else checks)
    given: dict[Kind, Gates] = {"fail-under": fail_under, "max-drop": max_drop}
    return tuple(_gate(kind, *pair, known) for kind, own in given.items() for pair in _pairs(kind, own))


def _pairs(kind: str, given: Gates) -> Iterator[tuple[str, Any]]:
    if isinstance(given, Mapping):
        yield from given.items()
        return
    for word in given:
        name, equals, number = word.partition("=")
        require(bool(equals), f"--{kind} takes NAME=NUMBER such as accuracy=0.9, got {word!r}")
        yield name, number


def _gate(kind: Kind, name: str, number: Any, known: Sequence[str]) -> Gate:
    measure, at, part = name.partition("@")
    measure = measure.replace("-", "_")
    usual = [m.usual_part for c in CHECKS.values() for m in c.measures if m.name == measure]
    name = measure if usual == [part] else measure + at + part  # @1, where 1 is what is meant without it
    require_known("gate", name, known)
    try:
        threshold = float(number)
    except (TypeError, ValueError):
        raise HoldfastError(f"--{kind} {name} takes a share such as 0.9, got {number!r}") from None
    require(0 <= threshold <= 1, f"--{kind} {name} must be in [0, 1], got {number}")
    return Gate(kind, name, threshold)


def judge(
    gate: Gate,
    findings: Sequence[Finding],
    *,
    fail_on: FailOn,
    states: Mapping[str, tuple[str, str]],
    base: Sequence[Finding] = (),
    against: str = "",
) -> dict[str, Any]:
    """Whether a gate holds, as plain values for findings.json.

    states: (state, reason) of each check. base, against: findings and name of the other model, for a drop. fail_on
    "low" takes the end of the interval that speaks against the model instead of the value. What was not measured, or
    cannot be believed, fails.
    """
    measured = target_of(gate.name)
    words = f"at most {gate.threshold:g} below {against}" if gate.kind == "max-drop" else f">= {gate.threshold:g}"
    made: dict[str, Any] = {"name": f"{gate.name} {words}", "kind": gate.kind, "measure": gate.name}
    made |= {"check": measured.check, "threshold": gate.threshold, "fail_on": fail_on}
    made |= {"against": against} if against else {}
    own = measured.find(findings)
    reason = _unusable(measured, own, states, gate.name)
    numbers = {column: _number(f) for column, f in own.items()}
    if gate.kind == "max-drop" and not reason:
        theirs = {column: _number(f) for column, f in measured.find(base).items()}
        reason = "" if own.keys() <= theirs.keys() else f"{gate.name} was not measured on {against}"
        numbers = {
            column: _paired(own[column], findings, against) or drop(theirs[column], number)
            for column, number in numbers.items()
            if column in theirs
        }
    if reason:
        return {**made, "value": None, "low": None, "high": None, "n": 0, "passed": False, "reason": reason}
    missed = {column: _missed(gate, number, fail_on, column) for column, number in numbers.items()}
    column, (short, why) = max(missed.items(), key=lambda named: named[1][0])
    made |= {"column": column} if column else {}
    return {**made, **vars(numbers[column]), "passed": short <= EXACT, "reason": "" if short <= EXACT else why}


def judge_all(
    gates: Sequence[Gate],
    fail_on: FailOn,
    names: Sequence[str],
    found: Sequence[Sequence[Finding]],
    states: Mapping[str, tuple[str, str]],
) -> list[dict[str, Any]]:
    """Every gate as plain values; one on a drop is judged against each of the other models.

    names, found: of every model, the audited one first. states: (state, reason) of each of its checks.
    """
    return [
        judge(gate, found[0], fail_on=fail_on, states=states, base=theirs, against=other)
        for gate in gates
        for other, theirs in (zip(names[1:], found[1:], strict=True) if gate.kind == "max-drop" else [("", ())])
    ]


def no_warnings(warnings: Sequence[Note]) -> dict[str, Any]:
    """The gate of ``--fail-on-warning``: it holds where nothing was said that changes how to read the numbers."""
    reason = "; ".join(note.text for note in warnings)
    return {"name": "no warnings", "kind": "fail-on-warning", "passed": not warnings, "reason": reason}


def drop(theirs: Number, ours: Number) -> Number:
    """How much lower ours is; the interval from both, as if samples were not shared, so rather too wide."""
    value, n = theirs.value - ours.value, min(theirs.n, ours.n)
    if theirs.low is None or theirs.high is None or ours.low is None or ours.high is None:
        return Number(value, None, None, n)
    down = math.hypot(theirs.value - theirs.low, ours.high - ours.value)
    up = math.hypot(theirs.high - theirs.value, ours.value - ours.low)
    return Number(value, max(-1.0, value - down), min(1.0, value + up), n)


def _number(found: Finding) -> Number:
    assert found.value is not None
    return Number(found.value, found.low, found.high, found.n)


def _paired(ours: Finding, findings: Sequence[Finding], against: str) -> Number | None:
    """The drop on the same samples, where the two were compared so on the same part of them."""
    where = {"against": against, "measure": ours.name, **ours.where}
    for f in findings:
        if (f.check, f.name, f.where) == ("against", "lead", where) and f.value is not None:
            return Number(-f.value, None if f.high is None else -f.high, None if f.low is None else -f.low, f.n)
    return None


def _unusable(
    measured: GateTarget, found: Mapping[str, Finding], states: Mapping[str, tuple[str, str]], name: str
) -> str:
    """Why a gate cannot hold whatever the number; empty where it can."""
    state, why = states.get(measured.check, ("skipped", "it was not asked for"))
    if state != "measured":
        return f"check {measured.check} was not measured: {state}" + (f" ({why})" if why else "")
    if not found:
        return f"check {measured.check} has no number for {name} on this data"
    if any(f.evidence.get("trusted") is False for f in found.values()):
        return f"the trust checks of check {measured.check} failed; its numbers may flatter the model"
    return ""


def _missed(gate: Gate, number: Number, fail_on: FailOn, column: str) -> tuple[float, str]:
    """By how much a gate is missed, negative where it holds with room to spare, and what to say if it is."""
    under, low, where = gate.kind == "fail-under", fail_on == "low", f" in column {column}" if column else ""
    bound = number.value if not low else number.low if under else number.high
    if bound is None:
        return math.inf, f"{gate.name} has no interval to fail on{where}; use --fail-on value"
    shown = f"{bound:.4f}" if abs(bound - gate.threshold) >= 5e-5 else f"{bound:.8g}"  # 0.69998 is not 0.7
    if under:
        what = "lower end of the interval" if low else "value"
        return gate.threshold - bound, f"{what} {shown} is under {gate.threshold:g}{where}"
    what = "drop may be" if low else "drop is"
    return bound - gate.threshold, f"{what} {shown}, more than {gate.threshold:g}{where}"
