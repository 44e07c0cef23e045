"""Gates for pipelines: what a model must reach, and whether it does.

What a gate may name follows from the measures that checks declare. Imports no torch, so that a mistyped name is refused
before anything runs.
"""

from __future__ import annotations

import math
import re
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Literal

from holdfast.errors import HoldfastError, require, require_known, unknown
from holdfast.parts import CHECKS
from holdfast.settings.audit_settings import make_checks
from holdfast.types import Finding, Measure, Note, Unit

FailOn = Literal["value", "low"]
Kind = Literal["fail-under", "max-drop", "fail-over"]
Gates = Sequence[str] | Mapping[str, float]
EXACT: Final = 1e-12
"""0.9 - 0.89 is a little more than 0.01 in binary; nobody means that."""
ANY_PART: Final = "*"
"""As the key of a part: whatever it is called, by all its values."""
LISTED_BY: Final = "holdfast list measures"
SEPARATOR: Final = re.compile("[@:]")
"""Between the name of a measure and its part."""


@dataclass(frozen=True)
class GateTarget:
    check: str
    name: str
    where: Mapping[str, str] = field(default_factory=dict)

    def find(self, findings: Iterable[Finding]) -> dict[str, Finding]:
        """What was measured, by column of groups, since the gate must hold for each; "" is none."""
        own = (f for f in findings if (f.check, f.name) == (self.check, self.name) and f.value is not None)
        return {f.where.get("column", ""): f for f in own if self._means(f.where)}

    def _means(self, where: Mapping[str, str]) -> bool:
        own = {key: value for key, value in where.items() if key != "column"}
        if ANY_PART in self.where:
            return "/".join(own.values()) == self.where[ANY_PART]
        return own == self.where


def gate_names(checks: Mapping[str, Any]) -> list[str]:
    """What a gate may be set on, with these settings of the checks; parts of the data in capitals."""
    names = []
    for check, measure in gated_measures():
        if measure.data_part:
            names.append(f"{measure.name}:{'GROUP' if measure.part == ANY_PART else measure.part.upper()}")
            continue
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
    >>> target_of("class_accuracy:cat")
    GateTarget(check='accuracy', name='accuracy', where={'class': 'cat'})
    """
    measure_name, part = _split(name)
    check, measure = _gated(measure_name, name)
    where = {measure.part: part or measure.usual_part} if measure.part else {}
    return GateTarget(check, measure.of or measure.name, where)


def _split(name: str) -> tuple[str, str]:
    """(Measure, part) of a gate's name."""
    measure, *part = SEPARATOR.split(name, maxsplit=1)
    return measure, "".join(part)


def _gated(measure_name: str, name: str) -> tuple[str, Measure]:
    for check, measure in gated_measures():
        if measure.name == measure_name:
            return check, measure
    raise unknown("gate", name, [measure.name for _, measure in gated_measures()])


def require_parts(gates: Iterable[Gate], checks: Mapping[str, Any], subject: Any) -> None:
    """Refuse a gate on a class or group that the data does not have, before anything is measured."""
    for gate in gates:
        measure_name, part = _split(gate.name)
        check, measure = _gated(measure_name, gate.name)
        if not measure.data_part:
            continue
        known = checks[check].data_parts(subject)
        what = "group" if measure.part == ANY_PART else measure.part
        require(bool(known), f"--{gate.kind} {gate.name}: the data has no {what}; leave it out, or choose other data")
        require_known(f"{what} in --{gate.kind} {measure_name}", part, known)


@dataclass(frozen=True)
class Gate:
    """One demand: a number to reach or not to exceed, or how much worse than another model's it may be."""

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
    fail_under: Gates,
    max_drop: Gates,
    fail_over: Gates = (),
    *,
    against: bool,
    checks: Mapping[str, Any] | None = None,
) -> tuple[Gate, ...]:
    """Gates from words such as ``worst_group_accuracy=0.7`` or from a mapping.

    A measure may be called by its name, with hyphens too, or by its title. checks: their settings, which decide what a
    gate may name after an @; those by default.

    >>> for gate in parse_gates(["worst-group-accuracy=0.7"], {}, {"ece": 0.05}, against=False):
    ...     print(gate)
    Gate(kind='fail-under', name='worst_group_accuracy', threshold=0.7)
    Gate(kind='fail-over', name='ece', threshold=0.05)
    """
    require(not max_drop or against, "--max-drop compares with another model; name it with --against")
    known = gate_names(make_checks({}) if checks is None else checks)
    given: dict[Kind, Gates] = {"fail-under": fail_under, "max-drop": max_drop, "fail-over": fail_over}
    return tuple(_gate(kind, *pair, known) for kind, own in given.items() for pair in _pairs(kind, own))


def _pairs(kind: str, given: Gates) -> Iterator[tuple[str, Any]]:
    if isinstance(given, Mapping):
        yield from given.items()
        return
    for word in given:
        name, equals, number = word.rpartition("=")  # the last: the name of a class may have one
        require(bool(equals), f"--{kind} takes NAME=NUMBER such as accuracy=0.9, got {word!r}")
        yield name, number


def _gate(kind: Kind, given: str, number: Any, known: Sequence[str]) -> Gate:
    name, measure = _named(given, known, kind)
    wrong = {"fail-under": "lower", "fail-over": "higher"}.get(kind)
    other = "fail-over" if kind == "fail-under" else "fail-under"
    require(measure.better != wrong, f"of {name}, {wrong} is better: use --{other} {name}={number}")
    share = measure.unit is not Unit.NUMBER
    what = "share" if share else "number"
    try:
        threshold = float(number)
    except (TypeError, ValueError):
        raise HoldfastError(f"--{kind} {name} takes a {what} such as 0.9, got {number!r}") from None
    bounds = "in [0, 1]" if share else ">= 0 and finite"
    require(0 <= threshold <= (1 if share else sys.float_info.max), f"--{kind} {name} must be {bounds}, got {number}")
    return Gate(kind, name, threshold)


def _named(given: str, known: Sequence[str], kind: Kind) -> tuple[str, Measure]:
    """The name of a gate as findings have it, and its measure."""
    word, part = _split(given)
    measures = {measure.name: measure for _, measure in gated_measures()}
    titles = {_plain(measure.title): name for name, measure in measures.items()}
    name = _plain(word)
    name = name if name in measures else titles.get(name, name)
    measure = measures.get(name)
    if measure is None:
        others = {m.name for c in CHECKS.values() for m in c.measures}
        require(name not in others, f"no gate can be set on {name}; 'holdfast list measures' marks those that can")
        raise unknown("gate", given, [*known, *(m.title for m in measures.values())], listed_by=LISTED_BY)
    if measure.data_part:
        example = next(one for one in known if one.startswith(f"{name}:"))
        require(bool(part), f"{name} is of many parts; say which: --{kind} {example}=0.7")
        return f"{name}:{part}", measure
    full = name if part in ("", measure.usual_part) else f"{name}@{part}"  # @1, where 1 is what is meant without it
    require_known("gate", full, known)
    return full, measure


def _plain(text: str) -> str:
    """A name or title for comparison.

    >>> _plain("Worst-group accuracy")
    'worst_group_accuracy'
    """
    return re.sub(r"[^a-z0-9]+", "_", text.lower()).strip("_")


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
    lower = _gated(_split(gate.name)[0], gate.name)[1].better == "lower"
    words = {
        "fail-under": f">= {gate.threshold:g}",
        "fail-over": f"<= {gate.threshold:g}",
        "max-drop": f"at most {gate.threshold:g} {'above' if lower else 'below'} {against}",
    }[gate.kind]
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
            column: _paired(own[column], findings, against)
            or (drop(number, theirs[column]) if lower else drop(theirs[column], number))
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
    """How much lower ours is; the interval from both, as if samples were not shared, so rather too wide.

    Of two shares, it lies in [-1, 1].
    """
    value, n = theirs.value - ours.value, min(theirs.n, ours.n)
    if theirs.low is None or theirs.high is None or ours.low is None or ours.high is None:
        return Number(value, None, None, n)
    down = math.hypot(theirs.value - theirs.low, ours.high - ours.value)
    up = math.hypot(theirs.high - theirs.value, ours.value - ours.low)
    most = 1.0 if max(theirs.high, ours.high) <= 1 else math.inf
    return Number(value, max(-most, value - down), min(most, value + up), n)


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
    if gate.kind == "max-drop":
        what = "drop may be" if low else "drop is"
        return bound - gate.threshold, f"{what} {shown}, more than {gate.threshold:g}{where}"
    what = f"{'lower' if under else 'upper'} end of the interval" if low else "value"
    missed = gate.threshold - bound if under else bound - gate.threshold
    return missed, f"{what} {shown} is {'under' if under else 'over'} {gate.threshold:g}{where}"
