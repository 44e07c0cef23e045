"""What a comparison found: its arms, its choice, and the files that hold them."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

from holdfast.files import write_atomic
from holdfast.reports.arms import Arm, Spread, spread_cell
from holdfast.reports.blocks import Cell, Table
from holdfast.reports.markdown import table as markdown_table
from holdfast.reports.notebook_tables import notebook_html
from holdfast.reports.report_tables import COMPARED, against, budget, method_table, paired_table
from holdfast.reports.run_files import COMPARISON
from holdfast.reports.table_files import csv_text, latex
from holdfast.settings.training import CellRule


@dataclass(frozen=True)
class Chosen:
    """The cell that a rule prefers; None where several are level. scores: one a seed of each cell, on held-out data."""

    label: str | None
    rule: CellRule
    scores: Mapping[str, tuple[float, ...]]


@dataclass(frozen=True, eq=False, repr=False)
class Comparison:
    """A finished comparison.

    arms: one for each cell that was trained, the baseline first.
    chosen: None where nothing is held out, or the cells do not share their data. why: how it came to that, in words.
    failed: what stopped a cell, by the name of the run.
    """

    out: Path
    arms: tuple[Arm, ...]
    chosen: Chosen | None
    why: str
    failed: Mapping[str, str]

    @property
    def baseline(self) -> Arm:
        return self.arms[0]

    def table(self) -> Table:
        """One row per cell: mean ± standard deviation over seeds, and the difference to the baseline."""
        return paired_table(self.arms, self.baseline, extra=self.score_columns())

    def score_columns(self) -> dict[str, list[Cell]]:
        """The scores on held-out data that the choice was made by, where there was one."""
        if self.chosen is None:
            return {}
        scores = {label: Spread(values, len(values)) for label, values in self.chosen.scores.items()}
        best = max(spread.mean or 0.0 for spread in scores.values())
        return {f"{self.chosen.rule}, %": [spread_cell(scores.get(arm.label), best) for arm in self.arms]}

    def _repr_html_(self) -> str:
        """In a notebook: one row per cell, mean and standard deviation over seeds."""
        failed = [f"{name} failed: {why}" for name, why in self.failed.items()]
        return notebook_html(f"Comparison in {self.out}", [method_table(self.arms)], failures=failed, lead=self.why)

    def __repr__(self) -> str:
        return f"<Comparison of {', '.join(arm.label for arm in self.arms)} in {self.out}>"


def write_comparison(done: Comparison) -> None:
    """comparison.json with every number, and the table as CSV, Markdown and LaTeX."""
    content, table = _record(done), done.table()
    texts = {
        COMPARISON: json.dumps(content, indent=1) + "\n",
        "comparison.csv": csv_text([_flat(row) for row in content["cells"]]),
        "comparison.md": "\n".join([*markdown_table(table), "", table.note, ""]),
        "comparison.tex": latex(table),
    }
    for name, text in texts.items():
        write_atomic(done.out / name, text.encode())


def _flat(row: Mapping[str, Any]) -> dict[str, Any]:
    """A cell of the record as one row: shares between 0 and 1, intervals of the paired difference as two columns."""
    made: dict[str, Any] = {"settings": row["settings"], "n": len(row["runs"]), "epochs": row["epochs"]}
    counted = [passes for passes in row["passes"] if passes is not None]
    made["passes"] = fmean(counted) if counted else None
    for name, own in row.items():
        if isinstance(own, Mapping):
            made |= {f"{name} mean": own["mean"], f"{name} sd": own["sd"]}
            if gap := own.get("difference"):
                made |= {f"{name} difference": gap["mean"], f"{name} low": gap["low"], f"{name} high": gap["high"]}
    return made


def _record(done: Comparison) -> dict[str, Any]:
    rows = []
    for arm in done.arms:
        epochs, passes = zip(*map(budget, arm.runs), strict=True)
        row: dict[str, Any] = {"settings": arm.label, "runs": [files.name for files in arm.runs]}
        row |= {"epochs": epochs[0], "passes": passes}
        for measure in COMPARED:
            spread = arm.spread(measure)
            if spread is None or spread.mean is None:
                continue
            row[measure.name] = {"values": spread.values, "mean": spread.mean, "sd": spread.sd}
            gap = None if arm is done.baseline else against(arm, done.baseline, measure)
            if gap is not None:
                row[measure.name]["difference"] = {"mean": gap.value, "low": gap.low, "high": gap.high, "n": gap.n}
        if done.chosen is not None and arm.label in done.chosen.scores:
            own = done.chosen.scores[arm.label]
            row[done.chosen.rule] = {"values": own, "mean": fmean(own), "sd": stdev(own) if len(own) > 1 else None}
        rows.append(row)
    chosen = None if done.chosen is None else {"settings": done.chosen.label, "rule": done.chosen.rule}
    return {"baseline": done.baseline.label, "chosen": chosen, "why": done.why, "cells": rows, "failed": done.failed}
