"""An audit at a glance: what holds and what drops, the state of every check, and the gates."""

from __future__ import annotations

from collections.abc import Sequence

from holdfast.reports import overview, robustness_summary
from holdfast.reports.blocks import Block, Chart, Details, Section, Side, Table
from holdfast.reports.findings_file import FindingsFile
from holdfast.reports.report_tables import leads, paired
from holdfast.reports.robustness_summary import Stand
from holdfast.reports.run_files import RunFiles
from holdfast.reports.sections import section
from holdfast.reports.svg import Bar, BarRow, bar_chart
from holdfast.reports.text import interval, percent

MOST_MODELS = 8
"""More are not drawn in one chart."""


@section("glance", order=-3)
def glance(runs: Sequence[RunFiles]) -> Section | None:
    audited = [(i, run) for i, run in enumerate(runs) if run.checks]
    if not audited:
        return None
    several = len(audited) > 1
    files = {run.name: _file(run) for _, run in audited}
    told = {name: overview.states(file.checks, file.gates) for name, file in files.items()}
    words = [f"{name}: {text}." if several else f"{text}." for name, text in told.items()]
    found = [
        (i, run.name, stands) for i, run in audited if (stands := robustness_summary.stands(run.findings, run.gates))
    ]
    blocks: list[Block] = []
    if found:
        tables = [
            robustness_summary.table(own, f"What drops: {name}" if several else "What drops") for _, name, own in found
        ]
        blocks.append(Side((_chart(found[:MOST_MODELS]), *tables)))
    pairs = paired([row for run in runs for row in leads(run.findings, run.name)])
    blocks += [pairs] if pairs is not None else []
    rest = [row for run in runs for row in leads(run.findings, run.name, parts=True)]
    if (more := paired(rest, "Paired differences by part")) is not None:
        blocks.append(
            Details(
                "Paired differences in every group, under every corruption and in every score of OOD images",
                (more,),
            )
        )
    blocks += [gates for file in files.values() if (gates := _gates(file, several)) is not None]
    blocks.append(
        overview.side_by_side(list(files.values()), list(files)) if several else overview.overview(*files.values())
    )
    lead = " ".join(words) + " What was not measured says why."
    return Section("glance", "At a glance", lead, tuple(blocks))


def _file(run: RunFiles) -> FindingsFile:
    """A run as the other renderings see it."""
    return FindingsFile(run.findings, {**run.model, "name": run.name}, run.data, checks=run.checks, gates=run.gates)


def _gates(file: FindingsFile, several: bool) -> Table | None:
    made = overview.gates(file)
    if made is None or not several:
        return made
    return Table(f"{made.caption} of {file.model['name']}", made.columns, made.rows)


def _chart(found: Sequence[tuple[int, str, Sequence[Stand]]]) -> Chart:
    """A bar a share and model; titles of one measure may differ between models, its name does not."""
    titles: dict[str, str] = {}
    for _, _, own in found:
        for s in own:
            titles.setdefault(s.name, s.title)
    rows = []
    for name, title in sorted(titles.items(), key=lambda item: _place(item[0])):
        bars = []
        for colour, model, own in found:
            stand = next((s for s in own if s.name == name), None)
            bars.append(_bar(stand, name, model, title, colour))
        rows.append(BarRow(title, tuple(bars)))
    demanded = any(s.demanded is not None for _, _, own in found for s in own)
    note = "Whiskers are 95 % intervals." + (" A thick mark is what was demanded." if demanded else "")
    legend = tuple((colour, model) for colour, model, _ in found) if len(found) > 1 else ()
    svg = bar_chart(rows, id="glance-holds", title="What holds", longest=26)
    return Chart("What robustness_summary, %", svg, legend, note)


def _place(name: str) -> int:
    first = name.partition("@")[0]
    return robustness_summary.ORDER.index(first) if first in robustness_summary.ORDER else len(robustness_summary.ORDER)


def _bar(stand: Stand | None, name: str, model: str, title: str, colour: int) -> Bar:
    if stand is None:
        text = "none found" if name == "slices" else "not measured"
        return Bar(None, None, None, text, f"{title}, {model}: {text}", colour)
    note = f"{stand.where}, {model}: {percent(stand.value)} %, n = {stand.n:,}"
    span = interval("accuracy", stand.low, stand.high)
    note += f", 95 % interval {span}" if span else ""
    if stand.demanded is not None:
        note += f"; demanded {percent(stand.demanded)} %, {'holds' if stand.passed else 'FAILED'}"
    return Bar(stand.value, stand.low, stand.high, percent(stand.value), note, colour, stand.demanded)
