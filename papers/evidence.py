"""What the papers' scripts share: the queue of trainings, and where their results are kept. Open it to add a column.

A unit is one training of one cell of a study with one seed, and the audits after it. Its result is a row of
``papers/PAPER/results/STUDY.json``.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

PAPERS = Path(__file__).resolve().parent
QUEUE = PAPERS / "queue.yaml"

Row = dict[str, Any]
LARGE = 1.5
"""A unit that gains less than this has large steps."""


@dataclass(frozen=True)
class Unit:
    """study: "alps/cifar10-vgg16", a file beside its README. flags: what differs from the study, by name of the flag.
    minutes: alone on one H200, audits included. gains: how much more than one of its kind the GPU does with several at
    once, at most. why: the question that it answers. needs: a unit whose model an audit uses."""

    study: str
    cell: str
    seed: int
    flags: tuple[tuple[str, str], ...] = ()
    audits: tuple[str, ...] = ()
    minutes: float = 0.0
    gains: float = math.inf
    why: str = ""
    needs: Unit | None = None

    @property
    def name(self) -> str:
        """Short, and fit for a folder.

        >>> Unit("alps/cifar10-vgg16", "label-smoothing", 0, (("conflict", "0.005"),)).name
        'alps-cifar10-vgg16-label-smoothing-conflict0.005-seed0'
        """
        words = [self.study, self.cell, *(f"{key}{value}" for key, value in self.flags), f"seed{self.seed}"]
        return re.sub(r"[^\w.+-]+", "-", "-".join(words))

    @property
    def large(self) -> bool:
        """Whether its steps fill the GPU, so that others like it gain little beside it."""
        return self.gains < LARGE

    @property
    def key(self) -> tuple[str, str, int, tuple[tuple[str, str], ...]]:
        """What tells its result from others."""
        return self.study, self.cell, self.seed, self.flags

    def words(self) -> list[str]:
        """The command that trains it, but for where its data and its runs lie."""
        own = [word for key, value in self.flags for word in (f"--{key}", value)]
        which = ["--only", self.cell, "--seeds", "1", "--seed", str(self.seed)]
        return ["holdfast", "compare", "--study", f"papers/{self.study}.yaml", *which, *own]


def read_queue(path: Path = QUEUE) -> tuple[list[Unit], dict[str, dict[str, Any]]]:
    """(Units, the most telling first; audits by name.)"""
    content = yaml.safe_load(path.read_text(encoding="utf-8"))
    audits: dict[str, dict[str, Any]] = content["audits"]
    units: dict[object, Unit] = {}
    why = ""
    for entry in content["queue"]:
        why = entry.setdefault("why", why)
        for unit in _units(entry, audits):
            units.setdefault((unit.key, unit.audits), unit)
    return list(units.values()), audits


def _units(entry: Mapping[str, Any], audits: Mapping[str, Mapping[str, Any]]) -> Iterator[Unit]:
    study, flags = entry["study"], tuple((key, str(value)) for key, value in entry.get("flags", {}).items())
    minutes = entry["minutes"]

    def unit(cell: str, seed: int, wanted: Sequence[str], needs: Unit | None = None) -> Unit:
        alone = minutes[cell] if isinstance(minutes, Mapping) else minutes
        total = alone + sum(audits[name]["minutes"] for name in wanted)
        gains = entry.get("gains", math.inf)
        return Unit(study, cell, seed, flags, tuple(wanted), total, gains, entry["why"], needs)

    other = unit(entry["needs"]["cell"], entry["needs"]["seed"], ()) if "needs" in entry else None
    for seed in entry["seeds"]:
        for cell in entry["cells"]:
            yield unit(cell, seed, entry.get("audits", ()), other)


def results_file(study: str) -> Path:
    """Where the rows of a study are kept."""
    paper, _, name = study.partition("/")
    return PAPERS / paper / "results" / f"{name}.json"


def read_rows(study: str, file: Path | None = None) -> list[Row]:
    """Rows of a study that have been measured; none where there is no file."""
    path = file or results_file(study)
    rows: list[Row] = json.loads(path.read_bytes())["rows"] if path.exists() else []
    return rows


def row_key(study: str, row: Row) -> tuple[str, str, int, tuple[tuple[str, str], ...]]:
    """As :attr:`Unit.key`."""
    return study, row["cell"], row["seed"], tuple((key, str(value)) for key, value in row.get("flags", {}).items())


def is_recorded(unit: Unit, rows: Sequence[Row]) -> bool:
    """Whether a row has everything that a unit would measure."""
    own = [row for row in rows if row_key(unit.study, row) == unit.key]
    return any(set(unit.audits) <= set(row.get("audits", {})) for row in own)


def merged(old: Sequence[Row], new: Sequence[Row]) -> list[Row]:
    """Rows of two origins. What was recorded stays as it is: a training that was repeated only adds its audits, and
    says that they are of another training.

    >>> old = [{"cell": "erm", "seed": 0, "measures": {"accuracy": [0.9]}}]
    >>> new = [{"cell": "erm", "seed": 0, "measures": {"accuracy": [0.8]}, "audits": {"attacks": {"findings": []}}}]
    >>> merged(old, new)[0]["measures"], merged(old, new)[0]["audits"]["attacks"]["of_another_training"]["accuracy"]
    ({'accuracy': [0.9]}, [0.8])
    """
    rows = [dict(row) for row in old]
    for row in new:
        same = [kept for kept in rows if row_key("", kept) == row_key("", row)]
        if not same:
            rows.append(dict(row))
            continue
        for name, audit in row.get("audits", {}).items():
            if name not in same[0].get("audits", {}):
                again = row.get("started") != same[0].get("started") or "started" not in row
                own = audit | ({"of_another_training": row["measures"]} if again else {})
                same[0]["audits"] = same[0].get("audits", {}) | {name: own}
    return rows


def write_rows(path: Path, rows: Sequence[Row]) -> None:
    """Small, and easy to compare in a commit: what holds plain values alone is one line."""
    path.parent.mkdir(parents=True, exist_ok=True)
    text = json.dumps({"rows": list(rows)}, indent=1, ensure_ascii=False)
    text = re.sub(r"([\[{])\n\s+([^\[\]{}]*?)\n\s*([\]}])", lambda m: m[1] + re.sub(r"\n\s*", " ", m[2]) + m[3], text)
    path.write_text(text + "\n", encoding="utf-8")
