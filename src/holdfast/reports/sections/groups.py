"""Groups: where in the table of classes and groups the model is weak, on bias-aligned and bias-conflicting samples."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import islice
from typing import Any

import numpy as np

from holdfast.reports.arms import Arm, FindingKey, Spread, share_chart, spread_cell
from holdfast.reports.blocks import Cell, Chart, Column, Section, Side, Table
from holdfast.reports.report_tables import all_numbers, over_seeds, why_empty
from holdfast.reports.robustness_summary import worst_cell
from holdfast.reports.run_files import group_attribute
from holdfast.reports.sections import of_check
from holdfast.reports.svg.bars import Heat, heat_map
from holdfast.reports.text import is_counts, percent, titled
from holdfast.types import Unit

CHECK = "groups"
COLUMNS = (
    "average_accuracy", "group_balanced_accuracy", "bias_aligned_accuracy", "bias_conflicting_accuracy",
    "harmonic_mean", "bias_gap", "worst_group_accuracy", "cell_gap", "group_gap",
)  # fmt: skip
MOST_SIDE = 24
"""A map of more rows or columns is not drawn; its numbers are in the findings."""
MOST_MAPS = 4


@of_check(CHECK)
def groups(given: Sequence[Arm]) -> Section | None:
    found = [arm for arm in given if any(_is(m, "worst_group_accuracy") for m in arm.found)]
    if not found:
        return None
    measured = [arm for arm in found if _names(arm)]
    if not measured:
        return Section(CHECK, "Groups", f"Not measured: {why_empty(found, CHECK)}.", ())
    lead = (
        "A cell is one group of one class. Worst-group accuracy is that of the lowest cell, group-balanced "
        "accuracy the mean over all cells. The lowest of many small cells is partly bad luck: its interval "
        "allows for that, the value does not. Bias-aligned samples belong to the usual group of their class in "
        "training; bias-conflicting ones do not; those of a class without a usual group are neither. In the maps "
        "a stronger colour is worse, and an empty cell has no samples."
    )
    blocks = (_table(measured), Side((*_bars(measured), *_maps(measured))), all_numbers(measured, CHECK))
    return Section(CHECK, "Groups", lead, blocks)


def _names(arm: Arm) -> list[str]:
    """The columns that were measured; the data set's own has no name."""
    worst = [(dict(m.where).get("column", ""), fs) for m, fs in arm.found.items() if _is(m, "worst_group_accuracy")]
    return [name for name, findings in worst if any(f.n for f in findings)]


def _is(measure: FindingKey, name: str) -> bool:
    return (measure.check, measure.name) == (CHECK, name)


def _key(name: str, column: str) -> FindingKey:
    return FindingKey(name, (("column", column),) if column else (), CHECK)


def _spread(arm: Arm, name: str, column: str) -> Spread | None:
    """A measure of a column; the average is the same in all of them, and has none."""
    return arm.spread(_key(name, column)) or arm.spread(_key(name, ""))


def _table(measured: Sequence[Arm]) -> Table:
    """One row per arm and column of groups; only measures that some row has."""
    rows = []
    for arm, column in ((one, name) for one in measured for name in _names(one)):
        cells = [spread_cell(_spread(arm, name, column)) for name in COLUMNS]
        rows.append((Cell(f"{arm.label}, {column}" if column else arm.label), *cells))
    kept = [i for i in range(len(COLUMNS)) if any(row[i + 1].text for row in rows)]
    titles = [titled(measured[0].measure(_key(COLUMNS[i], ""))) for i in kept]
    columns = Column.texts("method") + Column.numbers(*titles)
    balanced = "Group-balanced accuracy leaves empty cells out: it is what an unbiased test set would show."
    worst = (f"Worst cell of {arm.label}: {cell}." for arm in measured if (cell := _worst(arm)))
    notes = " ".join(filter(None, [over_seeds(measured), balanced, *_taking_part(measured), *worst]))
    return Table("Accuracy by group", columns, tuple((row[0], *(row[i + 1] for i in kept)) for row in rows), notes)


def _taking_part(measured: Sequence[Arm]) -> list[str]:
    """Which samples are bias-aligned or bias-conflicting, where those of some classes are neither; each note once."""
    findings = (f for arm in measured for key, fs in arm.found.items() if key.check == CHECK for f in fs)
    return list(dict.fromkeys(f"{f.evidence['note']}." for f in findings if "note" in f.evidence))


def _bars(measured: Sequence[Arm]) -> Iterator[Chart]:
    """The shares of the table with their intervals, one chart per column of groups."""
    for number, column in enumerate(dict.fromkeys(name for arm in measured for name in _names(arm))):
        rows = {}
        for name in COLUMNS:
            measure = measured[0].measure(_key(name, ""))
            spreads = [_spread(arm, name, column) for arm in measured]
            if measure.unit is Unit.PERCENT and any(spreads):
                rows[measure.title] = spreads
        title = "Accuracy by group" + (f", {column}" if column else "")
        yield share_chart(title, measured, rows, id=f"groups-bars-{number}", longest=29)


def _maps(measured: Sequence[Arm]) -> Iterator[Chart]:
    found = ((arm, fs) for arm in measured for key, fs in arm.found.items() if _is(key, "worst_group_accuracy"))
    tables = ((arm, table) for arm, fs in found if (table := summed([f.evidence.get("table") for f in fs])) is not None)
    small = ((arm, t) for arm, t in tables if max(len(t["classes"]), len(t["groups"])) <= MOST_SIDE)
    for number, (arm, table) in enumerate(islice(small, MOST_MAPS), start=1):
        yield _map(arm, table, f"groups-map-{number}", alone=len(measured) == 1)


def summed(given: Sequence[Any]) -> dict[str, Any] | None:
    """The tables of several seeds as one: samples and hits add up. None where one is not what the check writes."""
    total: dict[str, Any] | None = None
    for table in given:
        if not isinstance(table, Mapping) or not all(isinstance(table.get(key), list) for key in ("classes", "groups")):
            return None
        if not all(is_counts(table.get(key), len(table["classes"]), len(table["groups"])) for key in ("hits", "n")):
            return None
        if total is None:
            total = dict(table)
        elif (table["classes"], table["groups"]) != (total["classes"], total["groups"]):
            return None
        else:
            total |= {key: np.add(total[key], table[key]).tolist() for key in ("hits", "n")}
    return total


def _map(arm: Arm, table: Mapping[str, Any], id: str, *, alone: bool) -> Chart:
    classes, names = [str(c) for c in table["classes"]], [str(g) for g in table["groups"]]
    column = str(table.get("column", "group"))
    column = group_attribute(arm.runs[0]) or column if column == "group" else column
    cells = [
        [_heat(f"{label}, {name}", hits, n) for name, hits, n in zip(names, *row, strict=True)]
        for label, *row in zip(classes, table["hits"], table["n"], strict=True)
    ]
    title = f"Accuracy by class and {column}, %"
    svg = heat_map(classes, names, cells, id=id, title=title, x_label=column, y_label="class")
    note = _reading(classes, names, table, column) + (
        f" Every image counts once for each of {len(arm.runs)} seeds." if len(arm.runs) > 1 else ""
    )
    return Chart(title if alone else f"{title}: {arm.label}", svg, note=note)


def _reading(classes: Sequence[str], names: Sequence[str], table: Mapping[str, Any], column: str) -> str:
    """How to read the map, by its weakest cell."""
    shares = [
        (hits / n, n, label, name)
        for label, own, counts in zip(classes, table["hits"], table["n"], strict=True)
        for name, hits, n in zip(names, own, counts, strict=True)
        if n
    ]
    if not shares:
        return ""
    share, n, label, name = min(shares, key=lambda cell: (cell[0], -cell[1]))
    return (
        f"How to read it: of the {n:,} images of class {label} with {column} {name}, {percent(share)} % are recognised."
    )


def _heat(name: str, hits: int, n: int) -> Heat:
    if not n:
        return Heat(None, "–", f"{name}: no samples")
    return Heat(1 - hits / n, f"{100 * hits / n:.0f}", f"{name}: {percent(hits / n)} % of {n:,}")


def _worst(arm: Arm) -> str:
    """Which cell is the worst, for a single run; over seeds it may be another each time."""
    found = arm.found.get(FindingKey("worst_group_accuracy", (), CHECK), ()) if len(arm.runs) == 1 else ()
    return worst_cell(found[0]) if found else ""
