"""Accuracy on the test set as it is: overall, and by class and group."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from holdfast.reports import tables
from holdfast.reports.blocks import Block, Cell, Chart, Column, Details, Section, Side, Table
from holdfast.reports.runfiles import RunFiles
from holdfast.reports.summary import ALIGNED, AVERAGE, CONFLICTING, HARMONIC, Arm, Spread, arms
from holdfast.reports.svg import Bar, BarRow, bar_chart
from holdfast.reports.text import percent

MOST_ROWS = 20
"""A chart of more parts shows the weakest; the table below it has them all."""

MOST_NUMBERS = 5000
"""More findings than this are not listed one by one."""


def clean(runs: Sequence[RunFiles]) -> Section | None:
    groups = [arm for arm in arms(runs) if any(f.front == "clean" for run in arm.runs for f in run.findings)]
    if not groups:
        return None
    overall = {m.title: [arm.spread(m) for arm in groups] for m in (AVERAGE, ALIGNED, CONFLICTING, HARMONIC)}
    charts = [
        _chart(groups, "Overall", "overall", {title: s for title, s in overall.items() if any(s)}),
        *(_by_part(groups, key) for key in ("group", "class")),
    ]
    blocks: tuple[Block, ...] = (
        Side(tuple(chart for chart in charts if chart is not None)),
        Details("All numbers", tuple(_numbers(groups))),
    )
    return Section("clean", "Clean accuracy", f"Test set as it is, nothing added. {_whiskers(groups)}", blocks)


def _whiskers(groups: Sequence[Arm]) -> str:
    several, alone = "mean ± sample standard deviation over seeds", "the 95 % interval"
    if all(len(arm.runs) == 1 for arm in groups):
        return f"Whiskers are {alone}."
    if all(len(arm.runs) > 1 for arm in groups):
        return f"Whiskers are {several}."
    return f"Whiskers are {several}; for single runs, {alone}."


def _numbers(groups: Sequence[Arm]) -> Iterator[Table]:
    """The findings of each run, and the names of the runs that would make the page too long."""
    room = MOST_NUMBERS
    left_out = []
    runs = [(f"{run.name} ({arm.label})", run) for arm in groups for run in arm.runs if run.findings]
    for name, run in runs:
        own = [f for f in run.findings if f.front == "clean"]
        room -= len(own)
        if room >= 0:
            yield tables.findings(own, caption=f"Findings of {name if len(runs) > 1 else run.name}")
        else:
            left_out.append((Cell(name), Cell(f"{len(own):,}", len(own))))
    if left_out:
        columns = (Column("run"), Column("findings", numeric=True))
        yield Table("Runs whose numbers are in their findings.json only", columns, tuple(left_out))


def _by_part(groups: Sequence[Arm], key: str) -> Chart | None:
    by_arm = [arm.parts(key) for arm in groups]
    names = list(dict.fromkeys(name for parts in by_arm for name in parts))
    rows = {name: [parts.get(name) for parts in by_arm] for name in names}
    if len(names) <= MOST_ROWS:
        return _chart(groups, f"By {key}", key, rows)
    weakest = sorted(names, key=lambda name: min((s.mean for s in rows[name] if s and s.mean is not None), default=2.0))
    kept = {name: rows[name] for name in weakest[:MOST_ROWS]}
    note = f"The {MOST_ROWS} weakest of {len(names)}; all are under “All numbers”."
    return _chart(groups, f"By {key}", key, kept, note)


def _chart(
    groups: Sequence[Arm], title: str, id: str, rows: dict[str, list[Spread | None]], note: str = ""
) -> Chart | None:
    if not rows:
        return None
    bars = [
        BarRow(name, tuple(_bar(name, arm, s) for arm, s in zip(groups, spreads, strict=True)))
        for name, spreads in rows.items()
    ]
    legend = tuple((arm.number, arm.label) for arm in groups) if len(groups) > 1 else ()
    return Chart(title, bar_chart(bars, id=f"clean-{id}", title=f"Accuracy, {title.lower()}"), legend, note)


def _bar(name: str, arm: Arm, spread: Spread | None) -> Bar:
    who = f"{name}, {arm.label}"
    if spread is None or spread.mean is None:
        text = "not measured" if spread is None else tables.spread_cell(spread).text
        return Bar(None, None, None, text, f"{who}: {text}", arm.number)
    note = f"{who}: {tables.share(spread)} %, n = {spread.n:,}"
    if spread.sd is None and spread.low is not None and spread.high is not None:
        note += f", 95 % interval {percent(spread.low)} to {percent(spread.high)}"
    return Bar(spread.mean, spread.low, spread.high, percent(spread.mean), note, arm.number)
