"""``holdfast compare``."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from itertools import takewhile
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tyro.conf import OmitArgPrefixes

from holdfast.cli.common import console, narrate, parse, peek, require_data, say
from holdfast.cli.train import parse_train
from holdfast.errors import require
from holdfast.settings import TrainSettings
from holdfast.settings.command_settings import EngineSettings
from holdfast.settings.fields import Pairs, Quiet, Several, Unset
from holdfast.settings.training import CellRule

if TYPE_CHECKING:
    from holdfast.comparisons.plans import ComparisonPlan


@dataclass(frozen=True)
class CompareOptions:
    """What to compare."""

    out: str = "runs/compare"
    """Folder of the runs, of report.html and of comparison.json, .csv, .md and .tex. What is finished there is not
    repeated."""
    methods: Several[str] = ()
    """Methods to train (default: that of the base settings)."""
    recipes: Several[str] = ()
    """Recipes to train, each with its own settings, instead of --recipe and --methods; * stands for any letters."""
    vary: Pairs = ()
    """SETTING=VALUE,VALUE: one setting at a time, from the base settings."""
    grid: Pairs = ()
    """SETTING=VALUE,VALUE ...: all combinations."""
    study: Unset[str] = None
    """A named choice of these (biasadv-sensitivity, fsam-batch, fsam-radius or jtt-grid), or a .yaml file with one."""
    only: Several[str] = ()
    """Train and compare these cells alone, by the names that --plan shows."""
    baseline: Unset[str] = None
    """Method or cell that all are compared with (default: the first of --methods, or lff for lff+biasadv, ...)."""
    seeds: Unset[int] = None
    """Trainings of each cell, with seeds from --seed on (default: the study's, or 3)."""
    choose: CellRule = "val-average"
    """How the best cell is chosen where data is held out (--val); never on the test set. val-worst-group needs groups
    there."""
    plan: bool = False
    """Say what would be trained, stage by stage, with the settings that were chosen for it, and stop."""
    overwrite: bool = False
    """Train anew what is there."""
    quiet: Quiet = False
    where: OmitArgPrefixes[EngineSettings] = field(default_factory=EngineSettings)


def compare(words: list[str]) -> int:
    """Train methods or settings over seeds and compare them with a baseline, in one report."""
    plan, options, seeds = plan_comparison(words)
    if options.plan:
        from holdfast.comparisons.plans import settle_plan, stage_lines

        plan, said = settle_plan(plan)
        for cell in plan.cells:
            say(f"{cell.label}{' (baseline)' if cell is plan.baseline else ''}")
            say("\n".join(f"  {line}" for line in stage_lines(cell.settings)))
        for line in [*said, *filter(None, [plan.unequal_epochs()])]:
            say(line)
        say(f"{len(plan.cells)} cells × {seeds} seeds = {len(plan.cells) * seeds} trainings")
        return 0
    for name in dict.fromkeys(cell.settings.data.name for cell in plan.cells):
        require_data(name)

    from holdfast.comparisons.running import carry_out
    from holdfast.reports.renderings import paired_console
    from holdfast.train.progress import make_progress

    how: dict[str, Any] = {"choose": options.choose, "overwrite": options.overwrite, "where": options.where}
    done = carry_out(plan, Path(options.out), seeds=seeds, progress=make_progress(not options.quiet), **how)
    console().print(paired_console(done.arms, done.baseline, extra=done.score_columns()))
    for name, reason in done.failed.items():
        narrate(f"{name} failed: {reason}")
    for note in done.warnings:
        narrate(f"warning: {note}")
    say(done.why)
    say(f"report: {Path(options.out) / 'report.html'}")
    return 0


def plan_comparison(words: list[str]) -> tuple[ComparisonPlan, CompareOptions, int]:
    """Flags to cells, all values checked; nothing heavy is imported for it."""
    from holdfast.comparisons.plans import parse_axes, plan_study, study_engine

    about = f"{compare.__doc__} Every flag of 'holdfast train' is taken too, and sets what all trainings share."
    options, rest = parse(CompareOptions, words, "compare", about, return_unknown_args=True)
    rest = [*rest, "--out", options.out]
    recipes = _recipes(options, rest)
    base, shared = parse_train(rest, called="compare")
    options = replace(options, plan=options.plan or shared.print_config)
    axes = {"vary": parse_axes(options.vary), "grid": parse_axes(options.grid)}
    given = {"methods": options.methods, "recipes": recipes, "baseline": options.baseline}
    plan, seeds = plan_study(base, options.study, seeds=options.seeds, only=options.only, **given, **axes)
    return plan, replace(options, where=study_engine(options.where, options.study)), seeds


def _recipes(options: CompareOptions, rest: list[str]) -> dict[str, TrainSettings]:
    """Settings by what tells the recipes' names apart, or by the labels of a study's cells; flags change all of
    them."""
    from holdfast.comparisons.plans import study_cells
    from holdfast.comparisons.recipes import find_recipes

    if cells := study_cells(options.study):
        given = [f"--{name}" for name in ("recipe", "config") if peek(rest, f"--{name}") is not None]
        given += [f"--{name}" for name in ("recipes", "methods") if getattr(options, name)]
        require(not given, f"the study {options.study} lists its cells; leave out {' and '.join(given)}")
        return {label: parse_train(rest, called="compare", under=values)[0] for label, values in cells.items()}
    if not options.recipes:
        return {}
    require(peek(rest, "--recipe") is None, "give --recipe or --recipes, not both")
    names = find_recipes(options.recipes)
    return {
        label: parse_train(["--recipe", name, *rest], called="compare")[0]
        for label, name in zip(_labels(names), names, strict=True)
    }


def _labels(names: Sequence[str]) -> list[str]:
    """Names without the words that all begin with.

    >>> _labels(["biasadv/bar-erm", "biasadv/bar-erm+biasadv", "biasadv/bar-lff"])
    ['erm', 'erm+biasadv', 'lff']
    >>> _labels(["fsam/cifar10-resnet18", "fsam/cifar10-resnet18-sam"])
    ['resnet18', 'resnet18-sam']
    """
    words = [re.split("(?<=[/-])", name) for name in names]
    same = len(list(takewhile(lambda column: len(set(column)) == 1, zip(*(own[:-1] for own in words), strict=False))))
    return ["".join(own[same:]) for own in words]
