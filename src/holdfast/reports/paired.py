"""Arms against one of them, the baseline, seed by seed."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean, stdev

from rich.table import Table as RichTable

from holdfast.reports.blocks import Cell, Column, Table
from holdfast.reports.console import rich_table
from holdfast.reports.summary import AVERAGE, CONFLICTING, Arm, Measure
from holdfast.reports.tables import spread_cell
from holdfast.reports.text import finite, percent, setting

ROLE, BASELINE = "role", "baseline"
"""How findings.json marks the runs that others are compared with, under ``model``."""
COMPARED = (AVERAGE, CONFLICTING)
ROUNDING = 1e-9
"""Differences closer than this are the same: far below what one image of a test set changes."""


@dataclass(frozen=True, slots=True)
class Difference:
    """Mean difference over the seeds that both have.

    low, high: the 95 % interval of Student's t over these seeds; None for a single one, or where all differ alike.
    n: the number of seeds.
    """

    value: float
    low: float | None
    high: float | None
    n: int

    def __str__(self) -> str:
        """In percentage points.

        >>> str(Difference(0.05, 0.01, 0.09, 3)), str(Difference(-0.02, None, None, 1))
        ('+5.0 (+1.0 to +9.0)', '-2.0')
        """
        text = _signed(self.value)
        return (
            text if self.low is None or self.high is None else f"{text} ({_signed(self.low)} to {_signed(self.high)})"
        )


def difference(values: Sequence[float], baseline: Sequence[float]) -> Difference:
    """Paired numbers, one pair a seed.

    >>> found = difference([0.6, 0.7, 0.8], [0.5, 0.5, 0.5])
    >>> round(found.value, 3), round(found.low, 4), round(found.high, 4)
    (0.2, -0.0484, 0.4484)
    """
    gaps = [a - b for a, b in zip(values, baseline, strict=True)]
    mean = fmean(gaps)
    if max(gaps) - min(gaps) < ROUNDING:  # no spread was seen, and none at all is not what that means
        return Difference(mean, None, None, len(gaps))
    from scipy.special import stdtrit  # type: ignore[import-untyped]  # comes with scikit-learn

    half = float(stdtrit(len(gaps) - 1, 0.975)) * stdev(gaps) / math.sqrt(len(gaps))
    return Difference(mean, mean - half, mean + half, len(gaps))


def against(arm: Arm, baseline: Arm, measure: Measure) -> Difference | None:
    """A measure of one arm minus the baseline's, over the seeds of both; None where seeds or data are not shared."""
    if arm.data != baseline.data:
        return None
    own, other = by_seed(arm, measure), by_seed(baseline, measure)
    shared = [seed for seed in own if seed in other]
    return difference([own[s] for s in shared], [other[s] for s in shared]) if shared else None


def by_seed(arm: Arm, measure: Measure) -> dict[str, float]:
    """The measure of each run, by its seed."""
    found: dict[str, float] = {}
    for run in arm.runs:
        spread = Arm.of(arm.label, [run]).spread(measure)
        value = finite(spread.mean) if spread is not None else None
        if value is not None:
            found[setting(run.settings.get("seed"))] = value
    return found


def baseline_of(arms: Sequence[Arm]) -> Arm | None:
    """The arm that is marked as what the others are compared with."""
    return next((arm for arm in arms if arm.runs[0].model.get(ROLE) == BASELINE), None)


def paired_table(arms: Sequence[Arm], baseline: Arm, *, extra: Mapping[str, Sequence[Cell]] | None = None) -> Table:
    """One row an arm: mean ± sample standard deviation, and the difference to the baseline with its interval.

    extra: more columns by title, a cell for each arm.
    """
    measures = [m for m in COMPARED if any(arm.spread(m) for arm in arms)]
    rows = []
    for i, arm in enumerate(arms):
        same = arm is baseline
        gaps = [None if same else against(arm, baseline, m) for m in measures]
        rows.append((
            Cell(f"{arm.label} (baseline)" if same else arm.label),
            *(spread_cell(arm.spread(m)) for m in measures),
            *(Cell("" if gap is None else str(gap), None if gap is None else gap.value) for gap in gaps),
            *(cells[i] for cells in (extra or {}).values()),
            Cell(str(len(arm.runs)), len(arm.runs)),
        ))  # fmt: skip
    columns = [
        Column("settings"),
        *(Column(f"{m.title}, %", numeric=True) for m in measures),
        *(Column(f"Δ {m.title}, points", numeric=True) for m in measures),
        *(Column(title, numeric=True) for title in extra or {}),
        Column("seeds", numeric=True),
    ]
    note = (
        f"Mean ± sample standard deviation over seeds. Δ: mean difference to {baseline.label} over the seeds of both, "
        "with its 95 % interval (Student's t on the paired differences; each row for itself, not corrected for their "
        "number); none for a single seed, or where all differ alike."
    )
    return Table("Difference to the baseline", tuple(columns), tuple(rows), note)


def paired_console(
    arms: Sequence[Arm], baseline: Arm, *, extra: Mapping[str, Sequence[Cell]] | None = None
) -> RichTable:
    """The same for a terminal."""
    table = rich_table(paired_table(arms, baseline, extra=extra))
    table.columns[0].no_wrap = True
    table.collapse_padding, table.pad_edge, table.show_edge = True, False, False  # seven columns in eighty letters
    return table


def _signed(value: float) -> str:
    return f"{'-' if value < 0 else '+'}{percent(abs(value))}"
