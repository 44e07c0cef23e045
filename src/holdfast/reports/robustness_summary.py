"""What holds and what drops: each check of an audit in one share, against the clean accuracy and what was demanded.

Every number is a finding's own, or the plain difference of two that stand beside it; intervals are never made here.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from holdfast.reports.blocks import Cell, Column, Table
from holdfast.reports.text import finite, number, percent
from holdfast.types import Finding

ORDER = (
    "accuracy", "bias_conflicting_accuracy", "worst_group_accuracy", "slice_accuracy", "mean_corruption_accuracy",
    "robust_accuracy", "ood_auroc",
)  # fmt: skip
"""Names of shares without what follows an @, in reading order."""
PAPER = {"strength": "1"}
RADIUS = "8/255"
"""The radius that stands for the attacks, where it was measured; the largest otherwise."""


@dataclass(frozen=True, slots=True)
class Stand:
    """One share, the higher the better, with its interval.

    name: as a gate calls it. title: where, for people. detail: where exactly.
    drop: how far it is below the clean accuracy, or of a part below the rest, with an interval where the findings have
    one; None for other shares.
    demanded, passed: the highest share that a gate asks for, and whether all gates on it hold.
    """

    name: str
    check: str
    title: str
    value: float
    low: float | None
    high: float | None
    n: int
    drop: float | None = None
    drop_low: float | None = None
    drop_high: float | None = None
    demanded: float | None = None
    passed: bool = True
    detail: str = ""

    @property
    def where(self) -> str:
        return f"{self.title} ({self.detail})" if self.detail else self.title

    def clear(self, clean: Stand) -> bool:
        """Whether the drop is more than chance: its interval excludes zero, or the two intervals have a gap."""
        if self.drop is None or self.drop <= 0:
            return False
        if self.drop_low is not None:
            return self.drop_low > 0
        return self.high is None or clean.low is None or self.high < clean.low


def stands(findings: Sequence[Finding], gates: Sequence[Mapping[str, Any]] = ()) -> tuple[Stand, ...]:
    """The clean accuracy first, then the checks in reading order, then what else was demanded."""
    clean = _of(_one(findings, "accuracy", "accuracy", {}), "accuracy", "clean accuracy")
    demands = [g for g in gates if g.get("kind") == "fail-under" and finite(g.get("threshold")) is not None]
    failed = {g.get("measure"): g.get("column") for g in demands if not g["passed"]}
    made = [
        clean,
        _against_shortcut(_in(failed.get("bias_conflicting_accuracy"), findings)),
        _below(_worst(_in(failed.get("worst_group_accuracy"), findings)), clean),
        _slice(findings),
        _corrupted(findings),
        _attacked(findings),
        _of(_one(findings, "ood", "ood_auroc", {"score": "msp"}), "ood_auroc@msp", "OOD images, AUROC"),
    ]
    found = [stand for stand in made if stand is not None]
    known = {stand.name for stand in found}
    found += [stand for g in demands if g.get("measure") not in known and (stand := _demanded(g)) is not None]
    return tuple(_judged(stand, demands) for stand in {s.name: s for s in found}.values())


def sentence(found: Sequence[Stand]) -> str:
    """In words: the clean accuracy, what drops from it and by how much, what holds, and what is under the demand."""
    rest = [f"{word} {text}" for word, text in clauses(found)]
    return "; ".join([f"{percent(found[0].value)} % right on {found[0].n:,} images", *rest]) if rest else ""


def clauses(found: Sequence[Stand]) -> list[tuple[str, str]]:
    """The sentence in parts: what it is about, and what it says; none where no check but the clean one was measured."""
    if not found or found[0].name != "accuracy":
        return []
    dropping = sorted((s for s in found if s.clear(found[0])), key=lambda s: -(s.drop or 0.0))
    holding = [s for s in found if s.drop is not None and s not in dropping]
    said = []
    if dropping:
        first, *others = dropping
        rest = "".join(f", {percent(s.drop or 0.0)} {s.where}" for s in others)
        said.append(("drops", f"{percent(first.drop or 0.0)} points {first.where}{rest}"))
    if holding:
        said.append(("no clear drop", _listed([s.where for s in holding])))
    failed = [s for s in found if not s.passed and s.demanded is not None]
    if failed:
        under = [f"{percent(s.value)} % {s.where}, {percent(s.demanded or 0.0)} % demanded" for s in failed]
        said.append(("too low:", "; ".join(under)))
    return said


def table(found: Sequence[Stand], caption: str) -> Table:
    """One row a share: how much, how far below the clean accuracy, and what was demanded."""
    gated = any(s.demanded is not None for s in found)
    rows = []
    for s in found:
        cells = [Cell(s.title), Cell(percent(s.value), s.value)]
        cells.append(with_interval("drop", s.drop, s.drop_low, s.drop_high))
        if gated:
            verdict = "" if s.demanded is None else "" if s.passed else " FAILED"
            text = "" if s.demanded is None else percent(s.demanded) + verdict
            cells.append(Cell(text, s.demanded, strong=bool(verdict)))
        rows.append(tuple(cells))
    columns = [Column("where"), Column("share, %", numeric=True), Column("drop, points (95 %)", numeric=True)]
    columns += [Column("demanded, %", numeric=True)] if gated else []
    return Table(caption, tuple(columns), tuple(rows))


def _one(findings: Iterable[Finding], check: str, name: str, where: Mapping[str, str]) -> Finding | None:
    """The finding; of several columns of groups the lowest."""
    own = [
        f
        for f in findings
        if (f.check, f.name) == (check, name)
        and {k: v for k, v in f.where.items() if k != "column"} == dict(where)
        and finite(f.value) is not None
    ]
    return min(own, key=lambda f: f.value or 0.0, default=None)


def _in(column: str | None, findings: Sequence[Finding]) -> Sequence[Finding]:
    """The findings of the column that a gate failed in, where it did: it need not be that of the lowest value."""
    return findings if column is None else [f for f in findings if f.where.get("column") == column]


def _same(findings: Iterable[Finding], check: str, name: str, where: Mapping[str, str]) -> Finding | None:
    """The finding of exactly that part."""
    own = (f for f in findings if (f.check, f.name) == (check, name) and f.where == where)
    return next((f for f in own if finite(f.value) is not None), None)


def _of(found: Finding | None, name: str, title: str) -> Stand | None:
    if found is None or found.value is None:
        return None
    return Stand(name, found.check, title, found.value, finite(found.low), finite(found.high), found.n)


def _below(stand: Stand | None, clean: Stand | None) -> Stand | None:
    """With the plain difference where the findings have measured no drop, as older ones have not."""
    if stand is None or clean is None or stand.drop is not None:
        return stand
    return replace(stand, drop=clean.value - stand.value)


def _worst(findings: Sequence[Finding]) -> Stand | None:
    found = _one(findings, "groups", "worst_group_accuracy", {})
    if found is None:
        return None
    cell = found.evidence.get("cell")
    which = ", ".join(f"{k} {v}" for k, v in cell.items()) if isinstance(cell, Mapping) else ""
    stand = _dropped(
        _of(found, "worst_group_accuracy", "in the worst group"),
        _same(findings, "groups", "worst_group_drop", found.where),
    )
    return stand and replace(stand, detail=which)


def _against_shortcut(findings: Sequence[Finding]) -> Stand | None:
    """Samples that contradict the shortcut; they drop from those that follow it in the same column."""
    found = _one(findings, "groups", "bias_conflicting_accuracy", {})
    if found is None:
        return None
    column = {k: v for k, v in found.where.items() if k == "column"}
    stand = _dropped(
        _of(found, "bias_conflicting_accuracy", "against the shortcut"),
        _same(findings, "groups", "bias_gap", column),
    )
    return stand and replace(stand, detail=column.get("column", ""))


def _dropped(stand: Stand | None, by: Finding | None) -> Stand | None:
    """A share with the drop that the findings have measured."""
    if stand is None or by is None:
        return stand
    return replace(stand, drop=by.value, drop_low=finite(by.low), drop_high=finite(by.high))


def _slice(findings: Sequence[Finding]) -> Stand | None:
    """The confirmed weak part that is furthest below the rest."""
    confirmed = {
        f.where.get("slice"): f for f in findings if f.check == "slices" and f.evidence.get("confirmed") is True
    }
    gaps = [f for f in findings if (f.check, f.name) == ("slices", "slice_gap") and f.where.get("slice") in confirmed]
    worst = max((f for f in gaps if finite(f.value) is not None), key=lambda f: f.value or 0.0, default=None)
    if worst is None:
        return None
    name = str(worst.where["slice"])
    stand = _dropped(_of(confirmed[name], "slice_accuracy", "in a weak slice"), worst)
    return stand and replace(stand, detail=name)


def _corrupted(findings: Sequence[Finding]) -> Stand | None:
    stand = _of(
        _one(findings, "corruptions", "mean_corruption_accuracy", PAPER),
        "mean_corruption_accuracy",
        "under corruptions",
    )
    return _dropped(stand, _one(findings, "corruptions", "mean_corruption_drop", PAPER))


def _attacked(findings: Sequence[Finding]) -> Stand | None:
    """Share of images that withstand every attack, against the same images left alone."""
    own = [f for f in findings if (f.check, f.name) == ("attacks", "robust_accuracy") and finite(f.value) is not None]
    if not own:
        return None
    at = next((f for f in own if f.where.get("radius") == RADIUS), None)
    at = at or max(own, key=lambda f: finite(f.evidence.get("radius")) or 0.0)
    radius = at.where.get("radius", "")
    alone = _one(findings, "attacks", "attack_error", {"attack": "clean", "access": "none"})
    stand = _of(at, f"robust_accuracy@{radius}", "under attack")
    if stand is None:
        return None
    below = None if alone is None or alone.value is None else 1 - alone.value - stand.value
    return _dropped(replace(stand, drop=below, detail=radius), _same(findings, "attacks", "attack_drop", at.where))


def _demanded(gate: Mapping[str, Any]) -> Stand | None:
    """What a gate judged that stands for no check."""
    value, name = finite(gate.get("value")), str(gate.get("measure"))
    if value is None:
        return None
    check = str(gate.get("check") or "")
    return Stand(name, check, name, value, finite(gate.get("low")), finite(gate.get("high")), int(gate.get("n") or 0))


def _judged(stand: Stand, gates: Sequence[Mapping[str, Any]]) -> Stand:
    own = [g for g in gates if g.get("measure") == stand.name]
    if not own:
        return stand
    return replace(stand, demanded=max(float(g["threshold"]) for g in own), passed=all(g["passed"] for g in own))


def with_interval(name: str, value: float | None, low: float | None, high: float | None) -> Cell:
    """A share in percent or points with its interval, without units."""
    value, low, high = finite(value), finite(low), finite(high)
    if value is None:
        return Cell("")
    span = "" if low is None or high is None else f" ({number(name, low)} to {number(name, high)})"
    return Cell(number(name, value) + span, value)


def _listed(words: Sequence[str]) -> str:
    return words[0] if len(words) == 1 else f"{', '.join(words[:-1])} and {words[-1]}"
