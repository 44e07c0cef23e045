"""The demonstration: a shortcut in embedded data, and what each method makes of it."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

from holdfast.comparisons.recipes import read_recipe
from holdfast.comparisons.single_run import run
from holdfast.reports import RunFiles, write_report
from holdfast.settings import MethodSettings, TrainSettings, build
from holdfast.train.progress import Progress

RECIPE = "erm/coloured-digits"
METHODS: tuple[dict[str, Any], ...] = (
    {"name": "erm"},
    {"name": "jtt", "first_epochs": 2, "up": 20},
    {"name": "lff"},
    {"name": "lff+biasadv", "lam": 1.0, "radius": 2.0, "steps": 3, "beta": 0.5},
)
"""Plain training, and what can be done about a shortcut without knowing it."""


def demo(out: Path, *, seeds: int = 3, epochs: int | None = None, progress: Progress | None = None) -> list[RunFiles]:
    """Each method over a few seeds on digits whose colour gives the class away; one report over all runs."""
    progress = progress or Progress()
    base = build(TrainSettings, read_recipe(RECIPE))
    if epochs is not None:
        base = replace(base, loop=replace(base.loop, epochs=epochs))
    runs = []
    for method in map(MethodSettings.choose, METHODS):
        for seed in range(seeds):
            progress.note(f"{method.name}, seed {seed}")
            settings = replace(base, method=method, loop=replace(base.loop, seed=seed))
            runs.append(run(settings, out / f"{method.name}-seed{seed}", overwrite=True, progress=progress))
    write_report(runs, out / "report.html")
    return runs
