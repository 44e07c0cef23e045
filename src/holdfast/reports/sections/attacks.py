"""Attacks: error on adversarial examples, and whether the numbers can be trusted."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from holdfast.reports.arms import Arm, Spread, spread_cell
from holdfast.reports.blocks import Cell, Chart, Column, Details, Section, Side, Table, present
from holdfast.reports.report_tables import findings_list, over_seeds
from holdfast.reports.sections import of_check
from holdfast.reports.svg.lines import Line, share_lines
from holdfast.reports.text import finite
from holdfast.types import Finding

STRONGEST = "strongest"
TRANSFER = "black-box transfer"
"""The access of attacks with the gradients of another model, as findings have it."""
WARNING = "Gradients masked: do not trust these numbers"
TITLES = {
    "clean": "no attack",
    "noise": "random noise",
    STRONGEST: "strongest of all",
    "unbounded": "no radius, 200 steps",
}
LISTED = ("attack_error", "robust_accuracy", "attack_drop")
MOST_NUMBERS = 2000


@of_check("attacks")
def attacks(groups: Sequence[Arm]) -> Section:
    doubtful = [run.name for arm in groups for run in arm.runs if _doubtful(run.findings)]
    lead = (
        "Error on adversarial examples: test images changed by at most the radius so that the model errs. "
        "White-box attacks use the model's own gradients. Black-box attacks use those of another model "
        "(transfer), or only the model's outputs (queries). The strongest of all counts an image as wrong if any "
        "attack gets it wrong: quote this one."
    )
    if doubtful:
        names = ", ".join(doubtful[:5]) + (f" and {len(doubtful) - 5} more" if len(doubtful) > 5 else "")
        lead = f"{WARNING.upper()}: {names} failed a trust check, so robustness may be an illusion. {lead}"
    errors = present(*(_errors(arm, alone=len(groups) == 1) for arm in groups))
    checks = tuple(_checks(groups))
    blocks = present(
        *([Side(errors)] if len(errors) > 1 else errors),
        _presets(groups),
        _curves(groups),
        *(checks if doubtful or len(checks) == 1 else [Details("Trust checks: no sign of masked gradients", checks)]),
        Details("All numbers", tuple(_numbers(groups))),
    )
    return Section("attacks", f"Attacks: {WARNING.lower()}" if doubtful else "Attacks", lead, blocks)


def _doubtful(findings: Sequence[Finding]) -> bool:
    return any(f.check == "attacks" and f.evidence.get("trusted") is False for f in findings)


def _errors(arm: Arm, *, alone: bool) -> Table | None:
    cells = _spreads(arm)
    if not cells:
        return None
    radii = sorted({radius for _, radius in cells if radius}, key=lambda text: _value(arm, text))
    rows = []
    for attack, access in sorted(dict.fromkeys(row for row, _ in cells), key=lambda row: row[0] == STRONGEST):
        strongest, anywhere = attack == STRONGEST, cells.get(((attack, access), ""))
        values = [cells.get(((attack, access), radius), anywhere) for radius in radii]
        shown = (spread_cell(s, best=s.mean if s and strongest else None) for s in values)
        kind = Cell("" if access in ("none", "any") else access)
        rows.append((Cell(TITLES.get(attack, attack), strong=strongest), kind, *shown))
    columns = Column.texts("attack", "access") + Column.numbers(*radii)
    most = max(s.n for s in cells.values())
    warning = f"{WARNING}." if any(_doubtful(run.findings) for run in arm.runs) else ""
    note = f"Error in percent, on {most:,} images. Radius: the most that may change, in the norm {_norm(arm)}, "
    note += "where pixels are from 0 to 1."
    notes = " ".join(filter(None, [warning, note, over_seeds([arm])]))
    return Table("Error under attack" if alone else f"Error under attack: {arm.label}", columns, tuple(rows), notes)


def _spreads(arm: Arm) -> dict[tuple[tuple[str, str], str], Spread]:
    """Error over the seeds, by attack, access and radius as written; no radius where one attack has none."""
    keys = [key for key in arm.found if (key.check, key.name) == ("attacks", "attack_error")]
    found = ((dict(key.where), arm.found[key]) for key in keys)
    return {((w["attack"], w.get("access", "")), w.get("radius", "")): Spread.of(f) for w, f in found if "attack" in w}


def _value(arm: Arm, text: str) -> float:
    keys = [key for key in arm.found if key.check == "attacks" and ("radius", text) in key.where]
    sizes = (finite(arm.found[key][0].evidence.get("radius")) for key in keys)
    return next((float(size) for size in sizes if size is not None), 0.0)


def _norm(arm: Arm) -> str:
    shown = [f for m, fs in arm.found.items() if m.check == "attacks" and "attack" in dict(m.where) for f in fs]
    norms = {str(f.evidence.get("norm")) for f in shown}
    return ", ".join(sorted({"linf": "L∞", "l2": "L2"}.get(norm, norm) for norm in norms - {"None"}))


def _presets(groups: Sequence[Arm]) -> Table | None:
    """Attacks with settings by name: one row per arm, one column per name."""
    found = []
    for arm in groups:
        own = [(w["preset"], w["access"], fs) for key, fs in arm.found.items() if "preset" in (w := dict(key.where))]
        found.append({n if access == "white-box" else f"{n}, {access}": Spread.of(fs) for n, access, fs in own})
    names = list(dict.fromkeys(name for own in found for name in own))
    if not names:
        return None
    rows = tuple(
        (Cell(arm.label), *(spread_cell(own.get(name)) for name in names))
        for arm, own in zip(groups, found, strict=True)
    )
    columns = Column.texts("method") + Column.numbers(*names)
    note = (
        "In percent, with the model's own gradients unless it says transfer. Settings by name take the textbook's "
        "last point, for comparison with papers."
    )
    return Table("Error under named settings", columns, rows, note)


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
            means = ((radius, s.mean) for (own, radius), s in cells.items() if own == row and radius)
            points += [(_value(arm, radius) * factor, 1 - mean) for radius, mean in means if mean is not None]
            if len(points) > 1:
                name = TITLES.get(row[0], row[0]) + (f", {row[1]}" if row[1].startswith("black-box") else "")
                label, colour = (arm.label, arm.number) if len(groups) > 1 else (name, len(lines))
                lines.append(Line(label, (tuple(sorted(points)),), colour))
    title = "Accuracy against radius" + ("" if len(groups) == 1 else ", strongest of all attacks")
    transferred = any(access == TRANSFER for arm in groups for (_, access), _ in _spreads(arm))
    note = (
        f"An attack that works lies below random noise{', and a white-box attack below transfer' * transferred}. The "
        "model is at most as robust as the lowest line says."
        if len(groups) == 1
        else "The share of images that stays right under every attack within the radius."
    )
    return share_lines(title, lines, id="attacks-curves", x_label=unit, note=note)


def _checks(groups: Sequence[Arm]) -> Iterator[Table]:
    columns = Column.texts("check", "result", "what was seen")
    results = {None: Cell("not measured"), True: Cell("passed", 1.0), False: Cell("FAILED", 0.0, strong=True)}
    runs = [run for arm in groups for run in arm.runs]
    for run in runs:
        own = [f for f in run.findings if (f.check, f.name) == ("attacks", "trust_check")]
        judged = [results[None if f.value is None else bool(f.value)] for f in own]
        words = [(Cell(f.where.get("check", "")), Cell(str(f.evidence.get("says", "")))) for f in own]
        rows = tuple((name, result, said) for (name, said), result in zip(words, judged, strict=True))
        if rows:
            remark = next((str(f.evidence["remark"]).capitalize() for f in own if "remark" in f.evidence), "")
            verdict = WARNING if _doubtful(own) else remark or "All passed: no sign of masked gradients"
            caption = f"Trust checks of {run.name}" if len(runs) > 1 else "Trust checks"
            yield Table(caption, columns, rows, f"{verdict}.")


def _numbers(groups: Sequence[Arm]) -> Iterator[Table]:
    room = MOST_NUMBERS
    for run in (run for arm in groups for run in arm.runs):
        own = [f for f in run.findings if f.check == "attacks" and f.name in LISTED]
        room -= len(own)
        if own and room >= 0:
            yield findings_list(own, run.measures, caption=f"Errors and drops of {run.name}")
