"""Corruptions: accuracy when images are noisy, blurred, turned, compressed or partly hidden."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from statistics import fmean

from holdfast.reports.arms import Arm, FindingKey, Spread, figure_cell, share, spread_cell
from holdfast.reports.blocks import Cell, Chart, Column, Gallery, Section, Side, Table, png_picture, present
from holdfast.reports.report_tables import all_numbers, why_empty
from holdfast.reports.sections import of_check
from holdfast.reports.svg import INK
from holdfast.reports.svg.lines import Line, Point, share_lines
from holdfast.reports.text import DIFFERENCE, finite, records, sure

CHECK = "corruptions"
MEAN, NONE = "mean of eight", "none"
STANDARD = "1"


@of_check(CHECK)
def corruptions(found: Sequence[Arm]) -> Section:
    measured = [arm for arm in found if _values(arm, "corruption")]
    if not measured:
        return Section(CHECK, "Corruptions", f"Not measured: {why_empty(found, CHECK)}.", ())
    lead = (
        "The same test images after a corruption. Which eight, and how strong they are at strength 1, is from the "
        "BiasAdv paper. A drop compares every image with itself before the corruption."
    )
    eights = present(*(_eight(arm, alone=len(measured) == 1) for arm in measured))
    families = list(dict.fromkeys(family for arm in measured for family in _values(arm, "family")))
    blocks = present(
        *([Side(eights)] if len(eights) > 1 else eights),
        Side(present(_strengths(measured), *(_severities(measured, family, i) for i, family in enumerate(families)))),
        *(_errors(measured, family) for family in families),
        *_examples(measured[0], alone=len(measured) == 1),
        all_numbers(measured, CHECK),
    )
    return Section(CHECK, "Corruptions", lead, blocks)


def _spread(arm: Arm, name: str, **where: str) -> Spread | None:
    return arm.spread(FindingKey(name, tuple(sorted(where.items())), CHECK))


def _at(arm: Arm, what: str, corruption: str, strength: str) -> Spread | None:
    """Accuracy or drop under one corruption, or the mean over all of a strength."""
    if corruption == MEAN:
        return _spread(arm, f"mean_corruption_{what}", strength=strength)
    return _spread(arm, f"corruption_{what}", corruption=corruption, strength=strength)


def _values(arm: Arm, key: str, **fixed: str) -> list[str]:
    """What a part's key may be among accuracies that have the other parts given, in the order of the findings."""
    parts = [dict(m.where) for m in arm.found if (m.check, m.name) == (CHECK, "corruption_accuracy")]
    return list(dict.fromkeys(p[key] for p in parts if key in p and all(p.get(k) == v for k, v in fixed.items())))


def _eight(arm: Arm, *, alone: bool) -> Table | None:
    """One row per corruption, one column per strength, and the drop at the paper's strength."""
    strengths = _values(arm, "strength")
    if not strengths:
        return None
    at = STANDARD if STANDARD in strengths else strengths[-1]
    rows = []
    names = [n for n in _values(arm, "corruption") if _values(arm, "strength", corruption=n)]
    for name in [*names, MEAN]:
        cells = [replace(spread_cell(_at(arm, "accuracy", name, s)), strong=name == MEAN) for s in strengths]
        rows.append((Cell(name, strong=name == MEAN), *cells, figure_cell(DIFFERENCE, _at(arm, "drop", name, at))))
    clean = _spread(arm, "corruption_accuracy", corruption=NONE)
    titles = [*(f"strength {s}, %" for s in strengths), f"drop at {at}, points"]
    columns = Column.texts("corruption") + Column.numbers(*titles)
    note = "" if clean is None or clean.mean is None else f"Without corruption {share(clean)} %, n = {clean.n:,}."
    what = "eight corruptions" if len(names) <= 8 else "corruptions by strength"  # further ones by name
    return Table(f"Accuracy under {what}" + ("" if alone else f": {arm.label}"), columns, tuple(rows), note)


def _strengths(measured: Sequence[Arm]) -> Chart | None:
    """Accuracy over the strength: every corruption for one arm, the mean for several."""
    lines: list[Line] = []
    for arm in measured:
        for name in [*_values(arm, "corruption"), MEAN] if len(measured) == 1 else [MEAN]:
            at = {strength: _at(arm, "accuracy", name, strength) for strength in _values(arm, "strength")}
            points = _points({"0": _spread(arm, "corruption_accuracy", corruption=NONE), **at}, 100)
            if len(points) > 1:
                several = len(measured) > 1
                colour = arm.number if several else INK if name == MEAN else len(lines)
                lines.append(Line(arm.label if several else name, (points,), colour))
    title = "Accuracy against strength" + ("" if len(measured) == 1 else ", mean of eight")
    note = "" if len(measured) > 1 else "Dashed: the mean of eight."
    return share_lines(title, lines, id="corruptions-strength", x_label="strength, % of the paper's", note=note)


def _severities(measured: Sequence[Arm], family: str, number: int) -> Chart | None:
    """Accuracy over severity: a thick line for the mean of the corruptions, a thin one for each of them."""
    lines = []
    for arm in measured:
        curves = []
        for name in _values(arm, "corruption", family=family):
            where = {"family": family, "corruption": name}
            severities = _values(arm, "severity", **where)
            curves.append(_points({s: _spread(arm, "corruption_accuracy", severity=s, **where) for s in severities}))
        lines += [Line("", (curve,), arm.number, thin=True) for curve in curves if curve]
        xs = sorted({x for curve in curves for x, _ in curve})
        mean = tuple((x, fmean(y for curve in curves for at, y in curve if at == x)) for x in xs)
        if mean:
            lines.append(Line(arm.label if len(measured) > 1 else "average", (mean,), arm.number))
    title, note = f"Accuracy against severity, {family}", "Thin lines are single corruptions."
    return share_lines(title, lines, id=f"corruptions-severity-{number}", x_label="severity", direct=True, note=note)


def _errors(measured: Sequence[Arm], family: str) -> Table | None:
    """Error over the severities, by corruption, and its means; one column per arm."""
    names = list(dict.fromkeys(n for arm in measured for n in _values(arm, "corruption", family=family)))
    if not names:
        return None
    rows = [
        (Cell(n), *(spread_cell(_spread(arm, "corruption_error", family=family, corruption=n)) for arm in measured))
        for n in names
    ]
    means: dict[str, dict[str, str]] = {
        "mean corruption error": {},
        "mean, without the extra four": {"over": "without the extra four"},
        "mean, relative to the baseline": {"relative to": "baseline"},
    }
    for title, where in means.items():
        cells = [replace(spread_cell(_spread(arm, "mce", family=family, **where)), strong=True) for arm in measured]
        if any(cell.text for cell in cells):
            rows.append((Cell(title, strong=True), *cells))
    columns = Column.texts("corruption") + Column.numbers(*(f"{arm.label}, %" for arm in measured))
    note = "Mean over the severities. The four that were kept for validation are left out of published means."
    return Table(f"Error by corruption, {family}", columns, tuple(rows), note)


def _examples(arm: Arm, *, alone: bool) -> Iterator[Gallery]:
    """One image under each corruption, as the model saw it; of several seeds, the first's."""
    for finding in arm.found.get(FindingKey("examples", (), CHECK), ())[:1]:
        pictures = []
        for values in records(finding.evidence.get("examples")):
            name, label, said = str(values.get("corruption", "")), values.get("label"), values.get("prediction")
            title = "clean" if name == NONE else f"{name}, {values.get('strength', '')}"
            detail = ", ".join(filter(None, [str(values.get("prediction", "?")), sure(values.get("confidence"))]))
            alt = f"{values.get('label', '?')}, {title}; taken for {detail}"
            pictures.append(png_picture(values.get("png"), alt, title, detail, wrong=label != said))
        who = "the model" if alone else arm.label
        yield from Gallery.readable(f"One image under each corruption, and what {who} says", pictures)


def _points(spreads: Mapping[str, Spread | None], factor: float = 1) -> tuple[Point, ...]:
    """Means over the numbers that their keys are; a key that is not a number is left out."""
    points = []
    for text, spread in spreads.items():
        with suppress(ValueError):
            x = finite(float(text))
            if x is not None and spread is not None and spread.mean is not None:
                points.append((factor * x, spread.mean))
    return tuple(sorted(points))
