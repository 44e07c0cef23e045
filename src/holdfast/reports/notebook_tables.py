"""Results as a notebook, a terminal and pandas show them: small tables, warnings first. Open it to change what a run or
an audit shows where it is the last line of a cell."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from io import StringIO
from typing import TYPE_CHECKING, Any

from markupsafe import escape
from rich.console import Console

from holdfast.errors import HoldfastError
from holdfast.printable import one_line
from holdfast.reports.blocks import Cell, Table
from holdfast.reports.findings_file import FindingsFile
from holdfast.reports.headline import unbroken
from holdfast.reports.overview import gates, overview, side_by_side, states, title
from holdfast.reports.renderings import rich_table
from holdfast.reports.report_tables import leads, paired
from holdfast.reports.robustness_summary import robustness, summary_sentence

if TYPE_CHECKING:
    import pandas

WIDTH = 100
"""Letters per line of a table as text."""
MARK = "border-left: 4px solid {}; padding: 0.2em 0.8em; margin: 0.3em 0; background: {}"
WARNING, FAILURE = MARK.format("#b26a00", "#b26a0018"), MARK.format("#c62828", "#c6282818")
"""Half transparent, so that they read on a light and on a dark notebook."""


def data_frame(rows: Iterable[Mapping[str, Any]]) -> pandas.DataFrame:
    """Rows as a pandas data frame. Needs the extra ``holdfast[pandas]``."""
    try:
        import pandas
    except ImportError as error:
        remedy = "pip install 'holdfast[pandas]', or take rows(), which are the same as plain mappings"
        raise HoldfastError(f"to_dataframe needs pandas, which is not installed; {remedy}") from error
    return pandas.DataFrame([dict(row) for row in rows])


def table_html(table: Table) -> str:
    """A table that keeps the notebook's own colours.

    >>> from holdfast.reports.blocks import Column
    >>> print(table_html(Table("", Column.texts("a<b"), ((Cell("1 & 2"),),))).split("<tbody>")[1])
    <tr><td style="text-align: left">1 &amp; 2</td></tr></tbody></table>
    """
    sides = [f"text-align: {'right' if column.numeric else 'left'}" for column in table.columns]
    head = "".join(
        f'<th style="{own}">{_text(column.title)}</th>' for own, column in zip(sides, table.columns, strict=True)
    )
    body = "".join(f"<tr>{_row(row, sides)}</tr>" for row in table.rows)
    head = f"<thead><tr>{head}</tr></thead>" if any(column.title for column in table.columns) else ""
    caption = (
        f'<caption style="text-align: left; font-weight: 600; white-space: nowrap">{_text(table.caption)}</caption>'
    )
    note = f'<p style="opacity: 0.7; font-size: 90%">{_text(table.note)}</p>' if table.note else ""
    return f"<table>{caption * bool(table.caption)}{head}<tbody>{body}</tbody></table>{note}"


def _row(row: Sequence[Cell], sides: Sequence[str]) -> str:
    cells = (
        (own, f"<b>{_text(cell.text)}</b>" if cell.strong else _text(cell.text))
        for own, cell in zip(sides, row, strict=True)
    )
    return "".join(f'<td style="{own}">{text}</td>' for own, text in cells)


def _text(text: str) -> str:
    return str(escape(unbroken(one_line(text))))


def notebook_html(
    heading: str, tables: Sequence[Table], *, failures: Sequence[str] = (), warnings: Sequence[str] = (), lead: str = ""
) -> str:
    """What failed and what changes how to read the numbers, then a sentence, then tables."""
    lines = [f'<div style="{FAILURE}">{_text(text)}</div>' for text in failures]
    lines += [f'<div style="{WARNING}"><b>Warning:</b> {_text(text)}</div>' for text in warnings]
    lines += [f"<p>{_text(lead)}</p>"] if lead else []
    return f"<div><h4>{_text(heading)}</h4>{''.join(lines)}{''.join(map(table_html, tables))}</div>"


def plain_text(heading: str, tables: Sequence[Table], *, warnings: Sequence[str] = ()) -> str:
    """The same for a terminal."""
    made = Console(file=StringIO(), width=WIDTH, color_system=None)
    made.print(one_line(heading), *(f"warning: {one_line(text)}" for text in warnings), sep="\n", markup=False)
    for table in tables:
        made.print(rich_table(table))
    file = made.file
    assert isinstance(file, StringIO)
    return "\n".join(line.rstrip() for line in file.getvalue().rstrip().splitlines())


def audit_html(files: Sequence[FindingsFile], warnings: Sequence[str]) -> str:
    """An audit for a notebook: warnings and failures, the verdict, gates, headline numbers; other models beside them.

    warnings: what was said on the way; what the files say beyond that follows.
    """
    first = files[0]
    crashed = [f"check {r.name} crashed: {r.reason}" for file in files for r in file.checks if r.state == "crashed"]
    failed = [f"gate failed: {gate['name']}: {gate.get('reason')}" for gate in first.gates if not gate["passed"]]
    said = dict.fromkeys(warnings)
    said |= dict.fromkeys(text for text in first.warnings if not any(other in text for other in warnings))
    shares = summary_sentence(robustness(first.findings, first.measures, first.gates))
    verdict = ". ".join(filter(None, [shares, states(first.checks, first.gates)]))
    tables = [table for table in (gates(first),) if table is not None]
    if len(files) > 1:
        names = [str(file.model.get("name") or "model") for file in files]
        tables += [side_by_side(files, names)]
        pairs = paired(leads(first.findings, first.measures, names[0]))
        tables += [pairs] if pairs else []
    else:
        tables.append(overview(first))
    return notebook_html(title(first), tables, failures=[*crashed, *failed], warnings=[*said], lead=verdict)


@dataclass(frozen=True, eq=False, repr=False)
class SideBySide:
    """Two results compared: a table in a notebook and on a terminal; every number in :meth:`rows`.

    heading: which two. table: the numbers that matter most. notes: what changes how to read them.
    """

    heading: str
    table: Table
    all_rows: tuple[Mapping[str, Any], ...]
    notes: tuple[str, ...] = ()

    def rows(self) -> list[dict[str, Any]]:
        """One mapping per number that both have."""
        return [dict(row) for row in self.all_rows]

    def to_dataframe(self) -> pandas.DataFrame:
        """The same as a pandas data frame."""
        return data_frame(self.all_rows)

    def __len__(self) -> int:
        return len(self.all_rows)

    def __repr__(self) -> str:
        return plain_text(self.heading, [self.table], warnings=self.notes)

    def _repr_html_(self) -> str:
        return notebook_html(self.heading, [self.table], warnings=self.notes)
