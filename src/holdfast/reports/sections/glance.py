"""An audit at a glance: accuracy and its drops, the state of every check, and the gates."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from holdfast.reports.blocks import Chart, Details, Section, Side, present
from holdfast.reports.findings_file import AGAINST, all_measures
from holdfast.reports.overview import gates, overview, side_by_side, states
from holdfast.reports.report_tables import leads, paired
from holdfast.reports.robustness_summary import RobustnessResult, drop_table, robustness
from holdfast.reports.run_files import RunFiles
from holdfast.reports.sections import section
from holdfast.reports.svg.bars import Bar, BarRow, bar_chart
from holdfast.reports.text import SHARE, interval, percent

MOST_MODELS = 8


@section("glance", order=-3)
def glance(runs: Sequence[RunFiles]) -> Section | None:
    audited = [(i, run) for i, run in enumerate(runs) if run.checks]
    if not audited:
        return None
    several = len(audited) > 1
    files = {run.name: run.file() for _, run in audited}
    said = {run.name: f"{states(run.checks, run.gates)}." for _, run in audited}
    words = [f"{name}: {text}" if several else text for name, text in said.items()]
    found = [(i, run, own) for i, run in audited if (own := robustness(run.findings, run.measures, run.gates))]
    caption = "Drops"
    tables = [drop_table(own, f"{caption}: {run.name}" if several else caption) for _, run, own in found]
    pairs, more = (
        [row for run in runs for row in leads(run.findings, run.measures, run.name, parts=parts)]
        for parts in (False, True)
    )
    summary = "Paired differences in every group, corruption and score"
    by_part = paired(more, "Paired differences by part")
    judged = {name: made for name, file in files.items() if (made := gates(file)) is not None}
    blocks = present(
        Side((_chart(found[:MOST_MODELS]), *tables)) if found else None,
        paired(pairs),
        Details(summary, (by_part,)) if by_part else None,
        *(replace(made, caption=f"Gates of {name}") if several else made for name, made in judged.items()),
        side_by_side(list(files.values()), list(files)) if several else overview(*files.values()),
    )
    if any(record.asked and record.state != "measured" for _, run in audited for record in run.checks):
        words.append("Where a check was not measured, the last table says why.")
    return Section("glance", "At a glance", " ".join(words), blocks)


@section(AGAINST)
def against(runs: Sequence[RunFiles]) -> Section | None:
    """Nothing of its own: comparisons with other models are in the section at the top."""
    return None


def _chart(found: Sequence[tuple[int, RunFiles, Sequence[RobustnessResult]]]) -> Chart:
    every = [r for _, _, own in found for r in own]
    titles = {r.name: (r.title, r.check) for r in reversed(every)}
    order = [name for _, name in all_measures(found[0][1].measures)]  # a model may lack what another one has
    rows = []
    for name in sorted(dict.fromkeys(r.name for r in every), key=lambda name: [*order, name].index(name)):
        results = ((next((r for r in own if r.name == name), None), run, colour) for colour, run, own in found)
        rows.append(BarRow(titles[name][0], tuple(_bar(r, *titles[name], run, colour) for r, run, colour in results)))
    gated = any(r.threshold is not None for r in every)
    note = "Whiskers are 95 % intervals." + (" A thick mark is what a gate asks for." if gated else "")
    legend = tuple((colour, run.name) for colour, run, _ in found) if len(found) > 1 else ()
    svg = bar_chart(rows, id="glance-shares", title="Headline numbers", longest=29)
    return Chart("Headline numbers, %", svg, legend, note)


def _bar(result: RobustnessResult | None, title: str, check: str, run: RunFiles, colour: int) -> Bar:
    if result is None:
        measured = any(record.name == check and record.state == "measured" for record in run.checks)
        text = "none found" if measured else "not measured"
        return Bar(None, None, None, text, f"{title}, {run.name}: {text}", colour)
    note = f"{result.where}, {run.name}: {percent(result.value)} %, n = {result.n:,}"
    span = interval(SHARE, result.low, result.high)
    note += f", 95 % interval {span}" if span else ""
    if result.threshold is not None:
        judged = " for the lower bound" * result.bounded + (" passed" if result.passed else " FAILED")
        note += f"; gate at {percent(result.threshold)} %{judged}"
    return Bar(result.value, result.low, result.high, percent(result.value), note, colour, result.threshold)
