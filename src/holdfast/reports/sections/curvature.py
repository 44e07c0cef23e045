"""Curvature: how sharply the training loss curves around the weights."""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Iterator, Mapping, Sequence
from statistics import fmean, stdev

from holdfast.reports.arms import Arm, FindingKey, Spread, arms, legend
from holdfast.reports.blocks import Block, Cell, Chart, Column, Details, Section, Side, Table
from holdfast.reports.report_tables import reasons, seeds_cell
from holdfast.reports.run_files import RunFiles
from holdfast.reports.sections import section
from holdfast.reports.svg import Bar, BarRow, Line, Point, bar_chart, line_chart
from holdfast.reports.text import PLAIN, finite, number
from holdfast.types import Finding

LARGEST = FindingKey("top_eigenvalue", check="curvature", title="λ1")
FIFTH = FindingKey("fifth_eigenvalue", check="curvature", title="λ5")
RATIO = FindingKey("eigenvalue_ratio", check="curvature", title="λ1/λ5")
MEASURES = (LARGEST, FIFTH, RATIO)
GRID = 300
"""Points of a density; all methods are drawn on the same ones."""
FEWEST = 1e5
"""Parameters to assume where a finding does not say how many there are."""

Curve = tuple[Point, ...]


@section("curvature")
def curvature(runs: Sequence[RunFiles]) -> Section | None:
    groups = [arm for arm in arms(runs) if LARGEST in arm.found]
    if not groups:
        return None
    charts = [chart for chart in (_eigenvalues(groups), _density(groups)) if chart is not None]
    blocks: list[Block] = [_table(groups)]
    if charts:
        blocks += [Side(tuple(charts)), Details("All eigenvalues", tuple(_numbers(groups)))]
    lead = (
        "Largest eigenvalues of the Hessian of the training loss at the final weights. A small λ1 is a flat place: a "
        "step of length r in the steepest direction raises the loss by about λ1·r²/2. λ1/λ5 near 1 says that no one "
        "direction stands out. Compare models of one architecture on the same data."
    )
    return Section("curvature", "Curvature", lead, tuple(blocks))


def _table(groups: Sequence[Arm]) -> Table:
    rows = []
    for arm in groups:
        spreads = [arm.spread(measure) for measure in MEASURES]
        images = _images(arm)
        cells = [Cell("" if s is None else _amount(s), s.mean if s else None) for s in spreads]
        rows.append((Cell(arm.label), *cells, Cell(_span(images), max(images, default=0)), seeds_cell(arm, LARGEST)))
    columns = Column.texts("method") + Column.numbers(*(measure.title for measure in MEASURES), "images", "seeds")
    notes = ["Mean ± sample standard deviation over seeds."] if any(len(arm.runs) > 1 for arm in groups) else []
    if len({n for arm in groups for n in _images(arm)}) > 1:
        notes.append("Eigenvalues from fewer images come out larger: compare rows with the same number only.")
    notes += [f"{arm.label}: {reason}." for arm in groups for reason in reasons(arm, LARGEST.check)]
    return Table("Curvature by method", columns, tuple(rows), " ".join(notes))


def _images(arm: Arm) -> list[int]:
    return sorted({f.n for f in arm.found[LARGEST] if f.n})


def _span(numbers: Sequence[int]) -> str:
    if not numbers:
        return ""
    return f"{numbers[0]:,}" if len(numbers) == 1 else f"{numbers[0]:,} to {numbers[-1]:,}"


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
        found = [pairs for pairs in map(_pairs, arm.found[LARGEST]) if pairs]
        for rank in range(min(map(len, found), default=0)):
            values = [pairs[rank][0] for pairs in found]
            several = len(values) > 1
            whisker = stdev(values) if several else found[0][rank][1]
            note = f"λ{rank + 1}, {arm.label}: {_amount(Spread(tuple(values), 1))}"
            note += "" if several else f", residual {whisker:.1g}"
            mean = fmean(values)
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
    """Eigenvalues with their residuals, as far as both are numbers."""
    values, residuals = (_list(finding.evidence, key) for key in ("eigenvalues", "residuals"))
    pairs = []
    for value, residual in zip(values, residuals, strict=False):
        if value is None or residual is None:
            break
        pairs.append((value, residual))
    return pairs


def _list(values: object, key: str) -> list[float | None]:
    found = values.get(key) if isinstance(values, Mapping) else None
    numbers = found if isinstance(found, (list, tuple)) else ()
    return [finite(v) for v in numbers]


def _density(groups: Sequence[Arm]) -> Chart | None:
    curves = {arm.number: [c for c in map(_curve, arm.found[LARGEST]) if c] for arm in groups}
    xs = [x for own in curves.values() for curve in own for x, _ in curve]
    peak = max((y for own in curves.values() for curve in own for _, y in curve), default=0.0)
    if peak <= 0:
        return None
    low, high = min(xs), max(xs)
    grid = [low + (high - low) * i / (GRID - 1) for i in range(GRID)]
    parameters = max((_parameters(f) for arm in groups for f in arm.found[LARGEST]), default=FEWEST)
    floor = peak / parameters / 10  # an order below what a single eigenvalue shows
    factor, x_label = _whole(high - low)
    lines = []
    for arm in groups:
        if curves[arm.number]:
            mean = [(x, fmean(_at(curve, x) for curve in curves[arm.number])) for x in grid]
            lines.append(Line(arm.label, _above(mean, floor, factor), arm.number))
    title = "Density of eigenvalues"
    picture = line_chart(
        lines, id="curvature-density", title=title, x_label=x_label, y_range=(floor, peak), log=True, direct=False
    )
    note = "Share of all eigenvalues at each value, smoothed. Most are near zero."
    return Chart(f"{title}, logarithmic", picture, legend(groups), note)


def _curve(finding: Finding) -> Curve:
    density = finding.evidence.get("density")
    pairs = zip(_list(density, "grid"), _list(density, "density"), strict=False)
    return tuple(sorted((x, y) for x, y in pairs if x is not None and y is not None))


def _parameters(finding: Finding) -> float:
    value = finding.settings.get("parameters")
    return float(value) if isinstance(value, (int, float)) and value > 0 else FEWEST


def _at(curve: Curve, x: float) -> float:
    """A curve between its points, and zero beside them.

    >>> _at(((0.0, 1.0), (2.0, 3.0)), 0.5), _at(((0.0, 1.0), (2.0, 3.0)), 2.5)
    (1.5, 0.0)
    """
    right = bisect_right(curve, x, key=lambda point: point[0])
    if right == len(curve) and x == curve[-1][0]:
        return curve[-1][1]
    if right in (0, len(curve)):
        return 0.0
    (x0, y0), (x1, y1) = curve[right - 1 : right + 1]
    return y0 + (y1 - y0) * (x - x0) / (x1 - x0)


def _above(points: Sequence[Point], floor: float, factor: float) -> tuple[tuple[Point, ...], ...]:
    """The stretches of a curve that are above the floor."""
    segments: list[list[Point]] = [[]]
    for x, y in points:
        if y >= floor:
            segments[-1].append((x * factor, y))
        elif segments[-1]:
            segments.append([])
    return tuple(tuple(segment) for segment in segments if segment)


def _whole(span: float) -> tuple[float, str]:
    """What to multiply eigenvalues by so that whole numbers make good marks, and the name of the axis.

    >>> _whole(80.0), _whole(0.5)
    ((1.0, 'eigenvalue'), (100.0, 'eigenvalue × 100'))
    """
    power = max(0, math.ceil(math.log10(10 / span))) if 0 < span < 5 else 0
    return 10.0**power, f"eigenvalue × {10**power}" if power else "eigenvalue"


def _numbers(groups: Sequence[Arm]) -> Iterator[Table]:
    columns = Column.texts("eigenvalue") + Column.numbers("value", "residual") + Column.texts("converged")
    for arm in groups:
        for run in arm.runs:
            for finding in run.findings:
                if (finding.check, finding.name) != (LARGEST.check, LARGEST.name) or not _pairs(finding):
                    continue
                flags = finding.evidence.get("converged")
                flags = flags if isinstance(flags, (list, tuple)) else ()
                rows = tuple(
                    (Cell(f"λ{i + 1}"), Cell(number(PLAIN, v), v), Cell(f"{r:.1g}", r), Cell(_yes(flags, i)))
                    for i, (v, r) in enumerate(_pairs(finding))
                )
                name = run.name if len(groups) == 1 else f"{run.name} ({arm.label})"
                yield Table(f"Eigenvalues of {name}", columns, rows, f"On {finding.n:,} images.")


def _yes(flags: Sequence[object], i: int) -> str:
    return ("yes" if flags[i] else "no") if i < len(flags) else ""
