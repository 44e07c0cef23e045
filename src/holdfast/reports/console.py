"""The same tables for a terminal."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from rich import box
from rich.table import Table as RichTable
from rich.text import Text

from holdfast.printable import one_line
from holdfast.reports.arms import Arm, arms
from holdfast.reports.blocks import Cell, Table
from holdfast.reports.findings_file import Measures
from holdfast.reports.report_tables import findings_list, method_table, paired_table
from holdfast.reports.run_files import RunFiles
from holdfast.types import Finding


def comparison_table(runs: Sequence[RunFiles]) -> RichTable:
    """Runs side by side, as in the report: one row per method, mean ± sample standard deviation over seeds."""
    return rich_table(method_table(arms(runs)))


def findings_table(findings: Iterable[Finding], measures: Measures | None = None) -> RichTable:
    """One row per finding: what, where, how much, the interval and the number of samples."""
    return rich_table(findings_list(findings, measures or {}))


def paired_console(
    compared: Sequence[Arm], baseline: Arm, *, extra: Mapping[str, Sequence[Cell]] | None = None
) -> RichTable:
    table = rich_table(paired_table(compared, baseline, extra=extra))
    table.columns[0].no_wrap = True
    table.collapse_padding, table.pad_edge, table.show_edge = True, False, False  # seven columns in eighty letters
    return table


def rich_table(table: Table) -> RichTable:
    """Names go in as text, never as markup."""
    caption = Text(one_line(table.note), style="dim") if table.note else None
    rich = RichTable(title=Text(one_line(table.caption)), caption=caption, box=box.SIMPLE_HEAD)
    for column in table.columns:
        # fold: where a word is wider than its column, it continues below rather than being cut off
        rich.add_column(Text(one_line(column.title)), justify="right" if column.numeric else "left", overflow="fold")
    for row in table.rows:
        rich.add_row(*(Text(one_line(cell.text or "-"), style="bold" if cell.strong else "") for cell in row))
    return rich
