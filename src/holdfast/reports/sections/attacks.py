"""Attacks: error on adversarial examples, and whether the numbers can be trusted."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from holdfast.reports.arms import Arm, Spread, arms, spread_cell
from holdfast.reports.blocks import Block, Cell, Chart, Column, Details, Section, Side, Table
from holdfast.reports.report_tables import findings_list
from holdfast.reports.run_files import RunFiles
from holdfast.reports.sections import section
from holdfast.reports.svg import Line, share_lines
from holdfast.reports.text import finite
from holdfast.types import Finding

STRONGEST = "strongest"
WARNING = "Gradients masked: do not trust these numbers"
TITLES = {
    "clean": "no attack",
    "noise": "random noise",
    STRONGEST: "strongest of all",
    "unbounded": "no radius, 200 steps",
}
LISTED = ("attack_error", "robust_accuracy", "attack_drop")
MOST_NUMBERS = 2000
"""More findings than this are not listed one by one."""

Row = tuple[str, str]
"""Attack and access."""


@section("attacks")
def attacks(runs: Sequence[RunFiles]) -> Section | None:
    groups = [arm for arm in arms(runs) if any(m.check == "attacks" for m in arm.found)]
    if not groups:
        return None
    doubtful = [run.name for arm in groups for run in arm.runs if _doubtful(run.findings)]
    lead = (
        "Error on adversarial examples: test images moved by at most the radius, in the direction that hurts most. "
        "White-box attacks use the model's own gradients, black-box ones those of another model. The strongest of all "
        "counts an image as wrong if any attack gets it wrong: quote this one."
    )
    blocks: list[Block] = []
    if doubtful:
        lead = f"{WARNING.upper()}: {_listed(doubtful)} failed a trust check, so robustness may be an illusion. {lead}"
    errors = tuple(table for arm in groups if (table := _errors(arm, alone=len(groups) == 1)) is not None)
    blocks += [Side(errors)] if len(errors) > 1 else [*errors]
    blocks += [block for block in (_presets(groups), _curves(groups)) if block is not None]
    checks = list(_checks(groups))
    blocks += checks if doubtful or len(checks) == 1 else [Details("Trust checks, all passed", tuple(checks))]
    blocks.append(Details("All numbers", tuple(_numbers(groups))))
    return Section("attacks", f"Attacks: {WARNING.lower()}" if doubtful else "Attacks", lead, tuple(blocks))


def _doubtful(findings: Sequence[Finding]) -> bool:
    return any(f.check == "attacks" and f.evidence.get("trusted") is False for f in findings)


def _listed(names: Sequence[str]) -> str:
    return ", ".join(names[:5]) + (f" and {len(names) - 5} more" if len(names) > 5 else "")


def _errors(arm: Arm, *, alone: bool) -> Table | None:
    """One row per attack, one column per radius."""
    cells = _spreads(arm)
    if not cells:
        return None
    radii = sorted({radius for _, radius in cells if radius}, key=lambda text: _value(arm, text))
    rows = []
    for row in sorted(dict.fromkeys(row for row, _ in cells), key=lambda row: row[0] == STRONGEST):
        attack, access = row
        anywhere = cells.get((row, ""))
        values = [cells.get((row, radius), anywhere) for radius in radii]
        name = Cell(TITLES.get(attack, attack), strong=attack == STRONGEST)
        shown = (spread_cell(s, best=s.mean if s and attack == STRONGEST else None) for s in values)
        rows.append((name, Cell("" if access in ("none", "any") else access), *shown))
    columns = Column.texts("attack", "access") + Column.numbers(*radii)
    most = max(s.n for s in cells.values())
    note = f"In percent, on {most:,} images; radius in pixels of [0, 1], norm {_norm(arm)}."
    note += " Mean ± sample standard deviation over seeds." if len(arm.runs) > 1 else ""
    if any(_doubtful(run.findings) for run in arm.runs):
        note = f"{WARNING}. {note}"
    return Table("Error under attack" if alone else f"Error under attack: {arm.label}", columns, tuple(rows), note)


def _spreads(arm: Arm) -> dict[tuple[Row, str], Spread]:
    """Error over the seeds, by attack, access and radius as written; no radius where one attack has none."""
    found = {}
    for measure, findings in arm.found.items():
        where = dict(measure.where)
        if (measure.check, measure.name) == ("attacks", "attack_error") and "attack" in where:
            found[(where["attack"], where.get("access", "")), where.get("radius", "")] = Spread.of(findings)
    return found


def _value(arm: Arm, text: str) -> float:
    """A radius, as the number that its findings carry."""
    for measure, findings in arm.found.items():
        if measure.check == "attacks" and dict(measure.where).get("radius") == text:
            radius = finite(findings[0].evidence.get("radius"))
            if radius is not None:
                return float(radius)
    return 0.0


def _norm(arm: Arm) -> str:
    shown = [f for m, fs in arm.found.items() if m.check == "attacks" and "attack" in dict(m.where) for f in fs]
    norms = {str(f.evidence.get("norm")) for f in shown}
    return ", ".join(sorted({"linf": "L∞", "l2": "L2"}.get(norm, norm) for norm in norms - {"None"}))


def _presets(groups: Sequence[Arm]) -> Table | None:
    """Attacks with settings by name: one row per arm, one column per name."""
    found = [
        {_preset_name(dict(m.where)): Spread.of(fs) for m, fs in arm.found.items() if "preset" in dict(m.where)}
        for arm in groups
    ]
    names = list(dict.fromkeys(name for own in found for name in own))
    if not names:
        return None
    rows = tuple(
        (Cell(arm.label), *(spread_cell(own.get(name)) for name in names))
        for arm, own in zip(groups, found, strict=True)
    )
    columns = Column.texts("method") + Column.numbers(*names)
    note = (
        "In percent, with the model's own gradients unless it says black-box. Settings by name take the textbook's "
        "last point, for comparison with papers."
    )
    return Table("Error under named settings", columns, rows, note)


def _preset_name(where: Mapping[str, str]) -> str:
    return where["preset"] if where["access"] == "white-box" else f"{where['preset']}, {where['access']}"


def _curves(groups: Sequence[Arm]) -> Chart | None:
    """Accuracy over the radius: every attack for one arm, the strongest of all for several."""
    factor, unit = (255.0, "radius, /255") if _norm(groups[0]) == "L∞" else (100.0, "radius × 100")
    lines: list[Line] = []
    for arm in groups:
        cells = _spreads(arm)
        clean = next((s.mean for ((attack, _), _), s in cells.items() if attack == "clean"), None)
        rows = dict.fromkeys(row for row, radius in cells if radius)
        for row in rows if len(groups) == 1 else [row for row in rows if row[0] == STRONGEST]:
            points = [(0.0, 1 - clean)] if clean is not None else []
            points += [
                (_value(arm, radius) * factor, 1 - s.mean)
                for (own, radius), s in cells.items()
                if own == row and radius and s.mean is not None
            ]
            if len(points) > 1:
                label = arm.label if len(groups) > 1 else _label(row)
                lines.append(Line(label, (tuple(sorted(points)),), arm.number if len(groups) > 1 else len(lines)))
    title = "Accuracy against radius" + ("" if len(groups) == 1 else ", strongest of all attacks")
    note = "Attacks must lie below noise, and white-box below black-box; the lowest line is what can be promised."
    return share_lines(title, lines, id="attacks-curves", x_label=unit, note=note)


def _label(row: Row) -> str:
    attack, access = row
    return f"{TITLES.get(attack, attack)}, {access}" if access == "black-box" else TITLES.get(attack, attack)


def _checks(groups: Sequence[Arm]) -> Iterator[Table]:
    columns = Column.texts("check", "result", "what was seen")
    many = sum(len(arm.runs) for arm in groups) > 1
    for arm in groups:
        for run in arm.runs:
            own = [f for f in run.findings if (f.check, f.name) == ("attacks", "trust_check")]
            rows = tuple(
                (Cell(f.where.get("check", "")), _result(f), Cell(str(f.evidence.get("says", "")))) for f in own
            )
            if rows:
                verdict = WARNING if _doubtful(own) else "All passed: no sign of masked gradients"
                yield Table(f"Trust checks of {run.name}" if many else "Trust checks", columns, rows, f"{verdict}.")


def _result(finding: Finding) -> Cell:
    if finding.value is None:
        return Cell("not measured")
    return Cell("passed", 1.0) if finding.value else Cell("FAILED", 0.0, strong=True)


def _numbers(groups: Sequence[Arm]) -> Iterator[Table]:
    room = MOST_NUMBERS
    for arm in groups:
        for run in arm.runs:
            own = [f for f in run.findings if f.check == "attacks" and f.name in LISTED]
            room -= len(own)
            if own and room >= 0:
                yield findings_list(own, run.measures, caption=f"Errors and drops of {run.name}")
