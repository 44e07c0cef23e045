"""An audit at a glance: the state of every front with the numbers that stand for it, and the gates."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from holdfast.reports import overview
from holdfast.reports.blocks import Block, Cell, Column, Section, Table
from holdfast.reports.findings import FindingsFile
from holdfast.reports.runfiles import RunFiles


def glance(runs: Sequence[RunFiles]) -> Section | None:
    blocks: list[Block] = []
    words = []
    for run in runs:
        if not run.fronts:
            continue
        file = FindingsFile(run.findings, {**run.model, "name": run.name}, run.data, fronts=run.fronts, gates=run.gates)
        tables = [table for table in (overview.overview(file), overview.gates(file)) if table is not None]
        blocks += [_of(run.name, table) for table in tables] if len(runs) > 1 else tables
        words.append(f"{run.name}: {overview.verdict(file)}." if len(runs) > 1 else f"{overview.verdict(file)}.")
    if not blocks:
        return None
    lead = " ".join(words) + " What was not measured says why."
    return Section("glance", "At a glance", lead, tuple(blocks))


def _of(name: str, table: Table) -> Table:
    """The table with a first column that says whose it is."""
    rows = tuple((Cell(name), *row) for row in table.rows)
    return replace(table, columns=(Column("model"), *table.columns), rows=rows)
