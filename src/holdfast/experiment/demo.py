"""The demonstration: a shortcut in embedded data, and what each method makes of it."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from holdfast.experiment.recipes import read_recipe
from holdfast.experiment.run import run
from holdfast.reports import RunFiles, write_report
from holdfast.settings import MethodSettings, TrainSettings, build
from holdfast.train.progress import Progress

RECIPE = "erm/coloured-digits"


def demo(out: Path, *, seeds: int = 3, epochs: int | None = None, progress: Progress | None = None) -> list[RunFiles]:
    """Every method over a few seeds on digits whose colour gives the class away; one report over all runs."""
    progress = progress or Progress()
    base = build(TrainSettings, read_recipe(RECIPE))
    if epochs is not None:
        base = replace(base, loop=replace(base.loop, epochs=epochs))
    runs = []
    for name in MethodSettings.known:
        for seed in range(seeds):
            progress.note(f"{name}, seed {seed}")
            settings = replace(base, method=MethodSettings.choose(name), loop=replace(base.loop, seed=seed))
            runs.append(run(settings, out / f"{name}-seed{seed}", overwrite=True, progress=progress))
    write_report(runs, out / "report.html")
    return runs
