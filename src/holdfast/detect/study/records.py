"""The results of a study: read, put in order, made small, told in a line."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from holdfast.detect.study.jobs import JOBS
from holdfast.detect.study.judging import DRAWN, Record

BULKY = ("values", "reconstructions", "history", "points")
"""What a page draws and no table needs."""


def read_study(folder: str | Path) -> list[Record]:
    """All results of a folder, in the order of the jobs."""
    return in_order(json.loads(path.read_bytes()) for path in sorted(Path(folder).glob("*-seed*.json")))


def in_order(records: Iterable[Record]) -> list[Record]:
    order = list(JOBS)
    return sorted(records, key=lambda r: order.index(r["job"]) if r["job"] in order else len(order))


def slim(record: Record) -> Record:
    """The record without pictures and single values: what every table is made of.

    Of a history its last epoch stays, of each set's own scores AUROC and average precision.

    >>> slim({"seed": 1, "history": [{"loss": 2.0}, {"loss": 1.5}], "values": {"elbo": [1, 2]}, "map": {"points": []}})
    {'seed': 1, 'map': {}, 'history': [{'loss': 1.5}]}
    """
    made: Record = _slim(record)
    if "history" in record:
        made["history"] = record["history"][-1:]
    for sets in made.get("scores", {}).values():
        sets.update({name: {k: own[k] for k in ("auroc", "ap")} for name, own in sets.items() if name != "pooled"})
    return made


def _slim(value: Any) -> Any:
    return {k: _slim(v) for k, v in value.items() if k not in BULKY} if isinstance(value, dict) else value


def headline(record: Record) -> str:
    """The figure that matters of a job, for a log."""
    if "error" in record:
        return str(record["error"])
    parts = []
    for name in DRAWN:
        if name in record.get("scores", {}):
            pooled = record["scores"][name]["pooled"]
            parts.append(f"{name} AUROC {pooled['auroc'][0]:.3f} AP {pooled['ap'][0]:.3f}")
    for source in (record, record.get("heads", {})):
        parts += [f"{way} {value:.4f}" for way, value in source.get("accuracy", {}).items()]
    return ", ".join(parts)
