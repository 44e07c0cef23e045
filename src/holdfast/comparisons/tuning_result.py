"""What a search found: every trial, those that no other beats, the best settings, and the files that hold them.

Open this file to change what ``holdfast tune`` shows and writes at the end.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from holdfast.comparisons.search_space import Space
from holdfast.files import write_atomic
from holdfast.reports.blocks import Cell, Column, Table
from holdfast.settings import TrainSettings, flatten

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
