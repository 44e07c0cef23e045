"""Curvature: how sharply the training loss curves around the weights."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from itertools import chain, groupby, takewhile
from statistics import fmean

import numpy as np

from holdfast.reports.arms import Arm, FindingKey, Spread, legend
from holdfast.reports.blocks import Block, Cell, Chart, Column, Details, Section, Side, Table, present
from holdfast.reports.report_tables import over_seeds, reasons, seeds_cell
from holdfast.reports.sections import of_check
from holdfast.reports.svg.bars import Bar, BarRow, bar_chart
from holdfast.reports.svg.lines import Line, Point, line_chart
from holdfast.reports.text import PLAIN, finite, number, numbers, pairs
from holdfast.types import Finding

LARGEST = FindingKey("top_eigenvalue", check="curvature", title="λ1")
FIFTH = FindingKey("fifth_eigenvalue", check="curvature", title="λ5")
RATIO = FindingKey("eigenvalue_ratio", check="curvature", title="λ1/λ5")
MEASURES = (LARGEST, FIFTH, RATIO)
GRID = 300
"""Points of a density; all methods are drawn on the same ones."""
FEWEST = 1e5
"""Parameters to assume where a finding does not say how many there are."""


@of_check("curvature")
def curvature(given: Sequence[Arm]) -> Section | None:
    groups = [arm for arm in given if LARGEST in arm.found]
    if not groups:
        return None
    charts = present(_eigenvalues(groups), _density(groups))
    shown: list[Block] = [Side(charts), Details("All eigenvalues", tuple(_numbers(groups)))] if charts else []
    lead = (
        "Largest eigenvalues of the Hessian of the training loss at the final weights. A small λ1 means a flat "
        "minimum: a step of length r in the steepest direction raises the loss by about λ1·r²/2. λ1/λ5 near 1 "
        "means that no single direction stands out. On a sample of images λ1 comes out larger than on all of "
        "them: compare only models of one architecture on the same images."
    )
    return Section("curvature", "Curvature", lead, (_table(groups), *shown))


def _table(groups: Sequence[Arm]) -> Table:
    images = [sorted({f.n for f in arm.found[LARGEST] if f.n}) for arm in groups]
    rows = []
    for arm, own in zip(groups, images, strict=True):
        cells = [Cell(_amount(s), s.mean) if (s := arm.spread(measure)) else Cell("") for measure in MEASURES]
        span = " to ".join(f"{n:,}" for n in dict.fromkeys([*own[:1], *own[-1:]]))
        rows.append((Cell(arm.label), *cells, Cell(span, max(own, default=0)), seeds_cell(arm, LARGEST)))
    columns = Column.texts("method") + Column.numbers(*(measure.title for measure in MEASURES), "images", "seeds")
    fewer = "Eigenvalues from fewer images come out larger: compare rows with the same number only."
    notes = [over_seeds(groups), fewer if len(set(chain(*images))) > 1 else ""]
    notes += [f"{arm.label}: {reason}." for arm in groups for reason in reasons(arm, LARGEST.check)]
    return Table("Curvature by method", columns, tuple(rows), " ".join(filter(None, notes)))


def _amount(spread: Spread) -> str:
    """Mean and, over several seeds, sample standard deviation.

    >>> _amount(Spread((10.0, 14.0), n=1)), _amount(Spread((0.012345,), n=1)), _amount(Spread((), n=0))
    ('12.0 ± 2.8', '0.01235', 'not measured')
    """
    if spread.mean is None:
        return "not measured"
    if not spread.sd:
        return number(PLAIN, spread.mean) + (" ± 0" if spread.sd == 0 else "")
    digits = min(9, max(0, 1 - math.floor(math.log10(spread.sd))))
    return f"{spread.mean:.{digits}f} ± {spread.sd:.{digits}f}"


def _eigenvalues(groups: Sequence[Arm]) -> Chart | None:
    """One bar per eigenvalue and arm; the whisker is its residual, or the deviation over seeds."""
    bars: dict[int, list[Bar]] = {}
    for arm in groups:
        found = [own for own in map(_pairs, arm.found[LARGEST]) if own]
        for rank in range(min(map(len, found), default=0)):
            spread = Spread(tuple(own[rank][0] for own in found), 1)
            mean, whisker = fmean(spread.values), found[0][rank][1] if spread.sd is None else spread.sd
            note = f"λ{rank + 1}, {arm.label}: {_amount(spread)}"
            note += f", residual {whisker:.1g}" if spread.sd is None else ""
            bar = Bar(mean, mean - whisker, mean + whisker, number(PLAIN, mean), note, arm.number)
            bars.setdefault(rank, []).append(bar)
    if not bars:
        return None
    ends = [end for own in bars.values() for bar in own for end in (bar.low or 0.0, bar.high or 0.0)]
    reach = min(0.0, *ends), max(0.0, *ends)
    rows = [BarRow(f"λ{rank + 1}", tuple(bars[rank])) for rank in sorted(bars)]
    svg = bar_chart(rows, id="curvature-top", title="Largest eigenvalues", reach=reach if any(reach) else (0.0, 1.0))
    several = any(len(arm.runs) > 1 for arm in groups)
    note = "Whiskers are the standard deviation over seeds." if several else "Whiskers are the residuals ‖Hv − λv‖."
    return Chart("Largest eigenvalues", svg, legend(groups), note)


def _pairs(finding: Finding) -> list[tuple[float, float]]:
    both = zip(*(numbers(finding.evidence, key) for key in ("eigenvalues", "residuals")), strict=False)
    return [(v, r) for v, r in takewhile(lambda pair: None not in pair, both) if v is not None and r is not None]


def _density(groups: Sequence[Arm]) -> Chart | None:
    curves: dict[int, list[list[Point]]] = {}
    for arm in groups:
        found = (pairs(f.evidence.get("density"), "grid", "density") for f in arm.found[LARGEST])
        curves[arm.number] = [sorted(curve) for curve in found if curve]
    xs = [x for own in curves.values() for curve in own for x, _ in curve]
    peak = max((y for own in curves.values() for curve in own for _, y in curve), default=0.0)
    if peak <= 0:
        return None
    low, high = min(xs), max(xs)
    grid = [low + (high - low) * i / (GRID - 1) for i in range(GRID)]
    sizes = [finite(f.settings.get("parameters")) for arm in groups for f in arm.found[LARGEST]]
    floor = peak / max(size if size and size > 0 else FEWEST for size in sizes) / 10  # below what one eigenvalue shows
    factor, x_label = _whole(high - low)
    lines = []
    for arm in groups:
        if own := curves[arm.number]:
            each = [np.interp(grid, [x for x, _ in c], [y for _, y in c], left=0.0, right=0.0) for c in own]
            mean = zip(grid, np.mean(each, axis=0).tolist(), strict=True)
            lines.append(Line(arm.label, _above(mean, floor, factor), arm.number))
    title, id = "Density of eigenvalues", "curvature-density"
    picture = line_chart(lines, id=id, title=title, x_label=x_label, y_range=(floor, peak), log=True, direct=False)
    note = (
        "Share of all eigenvalues at each value, smoothed, as one random direction shows it. Most are near zero; a "
        "single one far from it may be missing here: the largest are listed beside it."
    )
    return Chart(f"{title}, logarithmic", picture, legend(groups), note)


def _above(points: Iterable[Point], floor: float, factor: float) -> tuple[tuple[Point, ...], ...]:
    stretches = groupby(points, key=lambda point: point[1] >= floor)
    return tuple(tuple((x * factor, y) for x, y in own) for above, own in stretches if above)


def _whole(span: float) -> tuple[float, str]:
    """What to multiply eigenvalues by so that whole numbers make good marks, and the name of the axis.

    >>> _whole(80.0), _whole(0.5)
    ((1.0, 'eigenvalue'), (100.0, 'eigenvalue × 100'))
    """
    power = max(0, math.ceil(math.log10(10 / span))) if 0 < span < 5 else 0
    return 10.0**power, f"eigenvalue × {10**power}" if power else "eigenvalue"


def _numbers(groups: Sequence[Arm]) -> Iterator[Table]:
    columns = Column.texts("eigenvalue") + Column.numbers("value", "residual") + Column.texts("converged")
    for label, name, finding in ((arm.label, run.name, f) for arm in groups for run in arm.runs for f in run.findings):
        if (finding.check, finding.name) != (LARGEST.check, LARGEST.name) or not (values := _pairs(finding)):
            continue
        flags = finding.evidence.get("converged")
        said = ["yes" if flag else "no" for flag in flags] if isinstance(flags, (list, tuple)) else []
        rows = tuple(
            (Cell(f"λ{i + 1}"), Cell(number(PLAIN, v), v), Cell(f"{r:.1g}", r), Cell(word))
            for i, ((v, r), word) in enumerate(zip(values, [*said, *[""] * len(values)], strict=False))
        )
        of = name if len(groups) == 1 else f"{name} ({label})"
        yield Table(f"Eigenvalues of {of}", columns, rows, f"On {finding.n:,} images.")
