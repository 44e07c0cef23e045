"""The tables that the terminal and the page share."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from holdfast.reports.blocks import Cell, Column, Table
from holdfast.reports.summary import AVERAGE, MEASURES, Arm, Spread
from holdfast.reports.text import finite, interval, part, percent, quantity
from holdfast.types import Finding

EMPTY = "empty"
NOT_FINITE = "not finite"


def comparison(arms: Sequence[Arm]) -> Table:
    """One row an arm, one column a measure that some arm has; in percent."""
    measures = [m for m in MEASURES if any(arm.spread(m) for arm in arms)]
    comparable = len(arms) > 1 and len({arm.data for arm in arms}) == 1
    best = {m: max((s.mean for a in arms if (s := a.spread(m)) and s.mean is not None), default=None) for m in measures}
    rows = []
    for arm in arms:
        cells = [spread_cell(arm.spread(m), best[m] if comparable else None) for m in measures]
        rows.append((Cell(arm.label), *cells, _seeds(arm)))
    columns = [
        Column("method"),
        *(Column(f"{m.title}, %", numeric=True) for m in measures),
        Column("seeds", numeric=True),
    ]
    several = any(len(arm.runs) > 1 for arm in arms)
    note = "Mean ± sample standard deviation over seeds." if several else ""
    if comparable and measures:
        note = f"{note} Bold: the highest of its column.".strip()
    return Table("Accuracy by method", tuple(columns), tuple(rows), note)


def each_run(arms: Sequence[Arm]) -> Table:
    """One row a run, with the numbers of :func:`comparison` before they are averaged."""
    measures = [m for m in MEASURES if any(arm.spread(m) for arm in arms)]
    rows = []
    for arm in arms:
        for run in arm.runs:
            alone = Arm.of(arm.label, [run])
            rows.append((Cell(run.name), Cell(arm.label), *(spread_cell(alone.spread(m)) for m in measures)))
    columns = [Column("run"), Column("method"), *(Column(f"{m.title}, %", numeric=True) for m in measures)]
    return Table("Accuracy of each run", tuple(columns), tuple(rows))


def findings(items: Iterable[Finding], *, caption: str = "Findings") -> Table:
    """One row a finding: what, where, how much, how sure."""
    rows = []
    for f in items:
        if f.evidence.get("pictures") is not None:
            continue
        text, span = shown(f)
        value, low = finite(f.value), finite(f.low)
        rows.append((Cell(f.name), Cell(part(f.where)), Cell(text, value), Cell(span, low), Cell(f"{f.n:,}", f.n)))
    columns = (
        Column("measure"), Column("part"), Column("value", numeric=True),
        Column("95 % interval", numeric=True), Column("n", numeric=True),
    )  # fmt: skip
    return Table(caption, columns, tuple(rows))


def shown(finding: Finding) -> tuple[str, str]:
    """(value, interval) of a finding as every rendering writes them."""
    value = finite(finding.value)
    text = EMPTY if not finding.n else NOT_FINITE if value is None else quantity(finding.name, value)
    return text, interval(finding.name, finding.low, finding.high)


def spread_cell(spread: Spread | None, best: float | None = None) -> Cell:
    """A share over seeds in percent: mean ± sample standard deviation."""
    if spread is None:
        return Cell("")
    if spread.mean is None:
        return Cell(EMPTY if not spread.n else NOT_FINITE)
    return Cell(share(spread), spread.mean, strong=spread.mean == best)


def share(spread: Spread) -> str:
    """Mean and, over several seeds, sample standard deviation, in percent without the sign.

    >>> share(Spread((0.5, 0.7), n=100)), share(Spread((0.5,), n=100))
    ('60.0 ± 14.1', '50.0')
    """
    mean = "" if spread.mean is None else percent(spread.mean)
    return mean if spread.sd is None else f"{mean} ± {percent(spread.sd)}"


def _seeds(arm: Arm) -> Cell:
    spread = arm.spread(AVERAGE)
    measured, total = len(spread.values) if spread else 0, len(arm.runs)
    return Cell(f"{total}" if measured == total else f"{measured} of {total}", measured)
