"""What was set, and where it ran."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from holdfast.reports.blocks import Block, Cell, Column, Details, Section, Table
from holdfast.reports.runfiles import RunFiles
from holdfast.reports.summary import flat, varying
from holdfast.reports.text import setting

MOST_TEXT = 400
"""A longer value, such as the names of a thousand classes, is cut."""


def settings(runs: Sequence[RunFiles]) -> Section | None:
    own = [flat(run.settings) for run in runs]
    differing = _differing(runs, own, "Settings that differ between runs")
    blocks: list[Block] = [differing] if differing else []
    everything = "All settings" if len(runs) == 1 else "Settings that all runs share"
    for summary, mappings in (
        (everything, own),
        ("Environment", [run.environment for run in runs]),
        ("Model and data", [_model_and_data(run) for run in runs]),
    ):
        inner = [_shared(mappings, summary if mappings is own or len(runs) == 1 else f"{summary}: what all runs share")]
        if mappings is not own:
            inner.append(_differing(runs, mappings, f"{summary}: where runs differ"))
        tables = tuple(table for table in inner if table is not None)
        if tables:
            blocks.append(Details(summary, tables))
    lead = "Enough to repeat each run: every setting is in the run folder's run.yaml."
    return Section("settings", "Settings", lead, tuple(blocks)) if blocks else None


def _shared(mappings: Sequence[Mapping[str, Any]], caption: str) -> Table | None:
    shared, _ = varying(mappings)
    rows = tuple((Cell(key), _cell(value)) for key, value in shared.items())
    return Table(caption, (Column("name"), Column("value")), rows) if rows else None


def _differing(runs: Sequence[RunFiles], mappings: Sequence[Mapping[str, Any]], caption: str) -> Table | None:
    _, keys = varying(mappings)
    if not keys:
        return None
    rows = tuple(
        (Cell(run.name), *(_cell(mapping[key]) if key in mapping else Cell("") for key in keys))
        for run, mapping in zip(runs, mappings, strict=True)
    )
    return Table(caption, (Column("run"), *(Column(key) for key in keys)), rows)


def _cell(value: Any) -> Cell:
    number = isinstance(value, (int, float)) and not isinstance(value, bool)
    text = setting(value)
    return Cell(text if len(text) <= MOST_TEXT else f"{text[:MOST_TEXT]} …", float(value) if number else None)


def _model_and_data(run: RunFiles) -> dict[str, Any]:
    return {f"{kind}.{key}": value for kind in ("model", "data") for key, value in getattr(run, kind).items()}
