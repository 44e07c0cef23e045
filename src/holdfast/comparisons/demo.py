"""The demonstration: a shortcut in embedded data, and what each method makes of it."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

from holdfast.comparisons.plans import ComparisonPlan, GridCell
from holdfast.comparisons.recipes import read_recipe
from holdfast.comparisons.running import carry_out
from holdfast.reports import RunFiles
from holdfast.settings import MethodSettings, TrainSettings, build
from holdfast.settings.command_settings import EngineSettings
from holdfast.train.progress import Progress

RECIPE = "erm/coloured-digits"
METHODS = ("erm", "jtt", "lff", "logit-correction")
"""Plain training, and what can be done about a shortcut without knowing it."""


def demo(out: Path, *, seeds: int = 3, epochs: int | None = None, progress: Progress | None = None) -> list[RunFiles]:
    """Each method over a few seeds on digits whose colour gives the class away; one report over all runs.

    Trainings run side by side with one thread each, so that the numbers do not depend on how many fit.
    """
    base = build(TrainSettings, read_recipe(RECIPE))
    if epochs is not None:
        base = replace(base, loop=replace(base.loop, epochs=epochs))
    cells = [GridCell(method.name, replace(base, method=method)) for method in map(MethodSettings.choose, METHODS)]
    where = EngineSettings(parallel="auto" if hasattr(os, "fork") else None, threads=1)
    done = carry_out(ComparisonPlan(tuple(cells)), out, seeds=seeds, overwrite=True, where=where, progress=progress)
    return [run for arm in done.arms for run in arm.runs]
