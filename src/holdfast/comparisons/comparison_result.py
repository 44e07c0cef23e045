"""What was found: the arms of a comparison and its choice, the trials of a search, and the files that hold them."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

import yaml

from holdfast.comparisons.search_space import Space
from holdfast.files import write_atomic
from holdfast.reports.arms import Arm, Spread, spread_cell
from holdfast.reports.blocks import Cell, Column, Table
from holdfast.reports.notebook_tables import notebook_html
from holdfast.reports.renderings import csv_text, latex, markdown_table
from holdfast.reports.report_tables import (
    COMPARED,
    against,
    budget,
    method_table,
    paired_table,
    turned_upside_down,
)
from holdfast.reports.run_files import COMPARISON
from holdfast.settings import TrainSettings, flatten
from holdfast.settings.training import CellRule
from holdfast.types import Note


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

    @property
    def warnings(self) -> tuple[Note, ...]:
        """What changes how to read the numbers."""
        return tuple(note for arm in self.arms if (note := turned_upside_down(arm)) is not None)

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
    made = {"baseline": done.baseline.label, "chosen": chosen, "why": done.why, "cells": rows, "failed": done.failed}
    return made | {"warnings": [asdict(note) for note in done.warnings]}


BEST = "best.yaml"


@dataclass(frozen=True)
class TunedTrial:
    """One trial: what was tried, the scores in the order of the objectives (empty where it did not come to an end), and
    how it ended: complete, pruned or failed."""

    name: str
    state: str
    values: Mapping[str, Any]
    scores: tuple[float, ...] = ()

    def summary(self, objectives: tuple[str, ...]) -> str:
        """The trial in one line."""
        tried = ", ".join(f"{name} {brief_value(value)}" for name, value in self.values.items())
        scores = zip(objectives, self.scores, strict=False)
        ended = ", ".join(f"{name} {100 * score:.1f} %" for name, score in scores) or self.state
        return f"{self.name}: {ended} ({tried})"


@dataclass(frozen=True)
class Tuning:
    """A finished search.

    trials: in the order in which they began. front: those that no other beats in every objective; with one objective,
    the best. best: the settings of the first of them by the first objective, which ``best.yaml`` holds too.
    """

    out: Path
    objectives: tuple[str, ...]
    trials: tuple[TunedTrial, ...]
    front: tuple[TunedTrial, ...]
    best: TrainSettings

    def table(self, most: int | None = None) -> Table:
        """The trials, best first; those that came to no end last. most: rows."""
        ranked = sorted(self.trials, key=lambda trial: [-score for score in trial.scores] or [math.inf])
        names = list(dict.fromkeys(name for trial in ranked for name in trial.values))
        rows = tuple(
            (
                Cell(trial.name, strong=trial in self.front),
                *(Cell(f"{100 * score:.2f}", score) for score in trial.scores or ()),
                *(Cell(trial.state) for _ in self.objectives if not trial.scores),
                *(Cell(brief_value(trial.values.get(name, ""))) for name in names),
            )
            for trial in ranked[:most]
        )
        columns = Column.texts("trial") + Column.numbers(*(f"{name}, %" for name in self.objectives), *names)
        note = "Scores on held-out data. Bold: no other trial is better in every score."
        return Table("Trials", columns, rows, note)

    def __repr__(self) -> str:
        first = self.front[0]
        scores = zip(self.objectives, first.scores, strict=True)
        shown = ", ".join(f"{name} {100 * score:.1f} %" for name, score in scores)
        return f"<Tuning of {len(self.trials)} trials in {self.out}: {first.name} is best ({shown})>"


def write_tuning(done: Tuning, space: Space) -> None:
    """best.yaml, to train with, and tuning.json with every trial, beside the runs."""
    first = done.front[0]
    scores = zip(done.objectives, first.scores, strict=True)
    head = f"# {first.name} of {len(done.trials)} trials: " + ", ".join(f"{name} {own:.4f}" for name, own in scores)
    how = f"holdfast train --config {done.out / BEST}"
    text = f"{head}, on held-out data\n# {how}\n" + yaml.safe_dump(flatten(done.best), sort_keys=False)
    write_atomic(done.out / BEST, text.encode())
    rows = [{"trial": t.name, "state": t.state, "settings": dict(t.values), "scores": t.scores} for t in done.trials]
    record = {"objectives": done.objectives, "space": {k: str(v) for k, v in space.items()}, "trials": rows}
    record |= {"front": [trial.name for trial in done.front], "best": first.name}
    write_atomic(done.out / "tuning.json", json.dumps(record, indent=1, default=str).encode() + b"\n")


def brief_value(value: Any) -> str:
    return f"{value:.3g}" if isinstance(value, float) else str(value)
