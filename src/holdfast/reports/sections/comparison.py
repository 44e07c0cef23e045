"""Methods side by side: runs that differ only in their seed are one row."""

from __future__ import annotations

from collections.abc import Sequence

from holdfast.reports import tables
from holdfast.reports.blocks import Block, Details, Section
from holdfast.reports.runfiles import RunFiles
from holdfast.reports.summary import ALIGNED, arms


def comparison(runs: Sequence[RunFiles]) -> Section | None:
    if len(runs) < 2:
        return None
    groups = arms(runs)
    blocks: list[Block] = [tables.comparison(groups)]
    if len(groups) < len(runs):
        blocks.append(Details(f"Each of the {len(runs)} runs", (tables.each_run(groups),)))
    lead = "Runs that differ only in their seed are one row."
    if any(arm.spread(ALIGNED) for arm in groups):
        lead += (
            " Aligned samples carry the shortcut that goes with their class in training, conflicting ones"
            " do not: a model that uses the shortcut is good on the first and poor on the second."
        )
    return Section("comparison", "Comparison", lead, tuple(blocks))
