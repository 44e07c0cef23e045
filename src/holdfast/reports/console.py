"""The same tables for a terminal."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from rich import box
from rich.table import Table as RichTable
from rich.text import Text

from holdfast.reports import tables
from holdfast.reports.blocks import Table
from holdfast.reports.runfiles import RunFiles
from holdfast.reports.summary import arms
from holdfast.reports.text import plain
from holdfast.types import Finding


def comparison_table(runs: Sequence[RunFiles]) -> RichTable:
    """Runs side by side, as in the report: one row a method, mean ± sample standard deviation over seeds."""
    return rich_table(tables.comparison(arms(runs)))


def findings_table(findings: Iterable[Finding]) -> RichTable:
    """One row a finding: what, where, how much, the interval and the number of samples."""
    return rich_table(tables.findings(findings))


def rich_table(table: Table) -> RichTable:
    """Names go in as text, never as markup."""
    caption = Text(plain(table.note), style="dim") if table.note else None
    rich = RichTable(title=Text(plain(table.caption)), caption=caption, box=box.SIMPLE_HEAD)
    for column in table.columns:
        # fold: where a word is wider than its column, it goes on below rather than being cut off
        rich.add_column(Text(plain(column.title)), justify="right" if column.numeric else "left", overflow="fold")
    for row in table.rows:
        rich.add_row(*(Text(plain(cell.text or "-"), style="bold" if cell.strong else "") for cell in row))
    return rich
