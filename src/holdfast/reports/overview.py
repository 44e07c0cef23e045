"""An audit at a glance: the tables that the terminal, Markdown and JUnit share, made from a findings file alone."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from holdfast.printable import one_line
from holdfast.reports.blocks import Cell, Column, Table
from holdfast.reports.findings_file import AGAINST, CheckRecord, FindingsFile, measure_of
from holdfast.reports.report_tables import all_leads, finding_cells, shown
from holdfast.reports.robustness_summary import headline_findings, robustness, summary_sentence, worst_cell
from holdfast.reports.text import EXACT, bounds, finite, measure_id, number, part
from holdfast.types import Finding


def headlines(file: FindingsFile, check: str) -> list[tuple[str, Finding]]:
    """The findings that stand for a check, each with its words; of two models, the leads that stand for one."""
    if check == AGAINST:
        return [(words, f) for f, words, stands in all_leads(file.findings, file.measures) if stands]
    return [
        (f"{measure.title}, {part(f.where)}" if f.where else measure.title, f)
        for measure, own in headline_findings(file.findings, file.measures)
        for f in own
        if f.check == check
    ]


def overview(file: FindingsFile) -> Table:
    """One row per headline number of a check that was asked for, with its state; what was not measured says why."""
    rows = []
    against = [CheckRecord(AGAINST, "measured")] if any(f.check == AGAINST for f in file.findings) else []
    for record in [*(r for r in file.checks if r.asked), *against]:
        found = headlines(file, record.name) if record.state == "measured" else []
        named = ((f"{what}: {cell}" if (cell := worst_cell(f)) else what, f) for what, f in found)
        own = [(Cell(what, link=_explained(file, f)), *finding_cells(f, file.measures)) for what, f in named]
        empty = (Cell(record.reason), Cell(""), Cell(""), Cell(""))
        rows += [(Cell(record.name), Cell(record.state), *cells) for cells in own or [empty]]
    columns = Column.texts("check", "state", "measure") + Column.numbers("value", "95 % interval", "n")
    return Table(title(file), columns, tuple(rows))


def _explained(file: FindingsFile, found: Finding) -> str:
    """The anchor at which a page says what this number is; empty where nothing does."""
    about = measure_of(found.check, found.name, file.measures).about
    return measure_id(found.check, found.name) if about else ""


def side_by_side(files: Sequence[FindingsFile], names: Sequence[str]) -> Table:
    """The numbers of :func:`overview` for several models: one row per number, one column per model."""
    cells: dict[tuple[str, str], list[Cell]] = {}
    links: dict[tuple[str, str], str] = {}
    for i, file in enumerate(files):
        for record in (r for r in file.checks if r.asked):
            for what, f in headlines(file, record.name) if record.state == "measured" else ():
                value, span = shown(f, file.measures)
                links[record.name, what] = _explained(file, f)
                row = cells.setdefault((record.name, what), [Cell("")] * len(files))
                row[i] = Cell(f"{value} ({span})" if span else value, finite(f.value))
            if record.state != "measured":
                row = cells.setdefault((record.name, "state"), [Cell("measured")] * len(files))
                row[i] = Cell(f"{record.state}: {record.reason}" if record.reason else record.state)
    columns = Column.texts("check", "measure") + Column.numbers(*names)
    order = {name: i for i, name in enumerate(dict.fromkeys(r.name for f in files for r in f.checks))}
    rows = sorted(cells.items(), key=lambda item: order[item[0][0]])
    note = "In parentheses: the 95 % interval."
    named = ((Cell(check), Cell(what, link=links.get((check, what), "")), own) for (check, what), own in rows)
    return Table("Every check", columns, tuple((check, what, *own) for check, what, own in named), note)


def gates(file: FindingsFile) -> Table | None:
    if not file.gates:
        return None
    rows = []
    for gate in file.gates:
        value, low, high = (finite(gate.get(key)) for key in ("value", "low", "high"))
        cells = (Cell("" if value is None else number(EXACT, value), value), Cell(bounds(low, high, EXACT), low))
        judged = Cell("passed" if gate["passed"] else "FAILED", strong=not gate["passed"])
        n, why = Cell(f"{gate.get('n', 0):,}", gate.get("n", 0)), Cell(str(gate.get("reason", "")))
        rows.append((Cell(str(gate["name"])), judged, *cells, n, why))
    columns = Column.texts("gate", "verdict") + Column.numbers("value", "95 % interval", "n") + Column.texts("why")
    return Table("Gates", columns, tuple(rows))


def title(file: FindingsFile) -> str:
    return f"{file.model.get('name') or 'model'} on {file.data.get('name') or 'data'}"


def verdict(file: FindingsFile) -> str:
    """What drops, the states of the checks and the gates, and every warning; one line."""
    words = [summary_sentence(robustness(file.findings, file.measures, file.gates)), states(file.checks, file.gates)]
    return one_line(". ".join(filter(None, [*words, *(f"Warning: {text}" for text in file.warnings)])))


def states(checks: Sequence[CheckRecord], gates: Sequence[Mapping[str, Any]]) -> str:
    """How many of the checks that were asked for were measured, which crashed, and how many gates passed."""
    measured, asked = sum(record.state == "measured" for record in checks), sum(record.asked for record in checks)
    words = ["1 check measured" if measured == asked == 1 else f"{measured} of {asked} checks measured"]
    words += filter(None, [troubles(checks, gates)])
    if gates and all(gate["passed"] for gate in gates):
        words.append("the gate passed" if len(gates) == 1 else f"all {len(gates)} gates passed")
    return "; ".join(words)


def troubles(checks: Sequence[CheckRecord], gates: Sequence[Mapping[str, Any]]) -> str:
    """Which checks crashed and how many gates failed, or which one where there is only one; empty where none did."""
    failed = [str(gate["name"]) for gate in gates if not gate["passed"]]
    lost = (
        f"the gate failed: {failed[0]}" if failed and len(gates) == 1 else f"{len(failed)} of {len(gates)} gates failed"
    )
    crashed = [record.name for record in checks if record.state == "crashed"]
    words = [f"crashed: {', '.join(crashed)}"] if crashed else []
    return "; ".join([*words, *([lost] if failed else [])])
