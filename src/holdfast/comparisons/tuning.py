"""``holdfast tune``: settings that do best on held-out data, searched by Optuna; the test set is never looked at.

Every trial is a run folder under a lease, as in a comparison. ``optuna_study.py`` has what workers do with a study.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from holdfast.comparisons.comparison_result import BEST, Tuning, write_tuning
from holdfast.comparisons.optuna_study import (
    MOST_RETRIES,
    SearchTask,
    TrialReporter,
    import_optuna,
    is_over,
    open_study,
    result,
    take_trials,
)
from holdfast.comparisons.recipes import read_recipe
from holdfast.comparisons.search_space import Space, check_space, default_space, given_space
from holdfast.comparisons.single_run import require_groups
from holdfast.data.result_folders import refuse_foreign
from holdfast.errors import HoldfastError, require
from holdfast.executors import Crashed, Executor, WorkerDied, make_executor
from holdfast.executors.executor_protocol import ThisProcess
from holdfast.executors.leases import sweep_all
from holdfast.settings import TrainSettings, build, layered, read_config
from holdfast.settings.command_settings import EngineSettings, SearchSettings, split_engine
from holdfast.settings.fields import split_off
from holdfast.train.preparing import choose_ahead, load_data
from holdfast.train.progress import Progress, make_progress

PATIENCE = 10.0
"""Seconds that workers have to end by themselves once there is nothing left to try."""


def tune(
    data: Any = None,
    *,
    out: str | Path,
    recipe: str | None = None,
    config: str | Path | None = None,
    space: Mapping[str, Any] | None = None,
    progress: bool | None = None,
    **settings: Any,
) -> Tuning:
    """Search for the settings that score best on held-out data.

    data, recipe, config: as in ``holdfast.compare``; there has to be held-out data (``val=0.1``, or a data set with a
    validation split). space: ``{"lr": (1e-4, 1e-1, "log"), "batch_size": [32, 64]}``; by default learning rate, weight
    decay, and the numbers that the method and the ascent declare.

    Settings have the names of ``holdfast tune``'s flags:

    - what to search for (``holdfast.settings.command_settings``): ``objectives``, scores of the validation split; with
      several, the trials that no other beats in all of them are the result. ``trials`` (30) and ``minutes``: what may
      be spent; the same call continues a search that was ended, and one with more trials extends it. ``pruning``
      ("median" or "none"): trials that are behind half of the others at the same step are ended (one objective,
      val-average, only). ``storage``: URL of a database that several machines share, such as
      ``postgresql://user@host/db``;
    - where to train: ``parallel``, ``threads``, ``engine``, ``address`` and ``lease``, as in ``holdfast.compare``;
    - what all trials share: those of ``holdfast.fit``.

    >>> import holdfast, tempfile
    >>> space = {"lr": (1e-3, 1e-1, "log")}
    >>> quick = {"model": "convnet", "epochs": 1, "val": 0.2, "device": "cpu", "progress": False}
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     found = holdfast.tune("digits", out=folder, space=space, trials=2, **quick)
    >>> len(found.trials), found.best.optimizer.lr == found.front[0].values["lr"]
    (2, True)
    """
    by_name = data is None or isinstance(data, str | Path)
    require(by_name, f"tune takes data by name or path, got {type(data).__name__}; save it to a file first")
    where, settings = split_engine(settings)
    wanted, settings = split_off(SearchSettings, settings)
    if data is not None:
        settings["data"] = str(data)
    file = read_config(Path(config), settings) if config else {}
    base = build(TrainSettings, layered(read_recipe(recipe) if recipe else {}, file, settings))
    own = None if space is None else given_space(space)
    return search(base, Path(out), space=own, wanted=wanted, where=where, progress=make_progress(progress))


def search(
    base: TrainSettings,
    out: Path,
    *,
    space: Space | None = None,
    wanted: SearchSettings | None = None,
    where: EngineSettings | None = None,
    progress: Progress | None = None,
) -> Tuning:
    """:func:`tune` of resolved settings."""
    import_optuna()  # what is missing is said first
    progress, wanted, where = progress or Progress(), wanted or SearchSettings(), where or EngineSettings()
    if space is not None:
        check_space(base, space)
    found = load_data(base.resolved())
    held = f"{base.data.name} has no validation split to choose on; hold one out with --val 0.1"
    require(found.val is not None, held)
    for name in wanted.objectives:
        require_groups(name, found)
    base = choose_ahead(base).settings  # the same for all trials, and what ranges lie around
    space = default_space(base) if space is None else space
    refuse_foreign(out, (BEST, "study.db", "*/run.yaml"), data=base.data.name)
    out.mkdir(parents=True, exist_ok=True)
    executor = make_executor(where, device=base.loop.device, calls=wanted.trials)
    alone, seconds = isinstance(executor, ThisProcess), None if wanted.minutes is None else 60 * wanted.minutes
    task = SearchTask(out.resolve(), base, space, wanted, seconds=seconds, lease=where.lease, at_once=not alone)
    study = open_study(task)
    reporter = TrialReporter(study, task, progress)
    if alone:
        with executor, progress:
            take_trials(task, None, told=reporter.look)
    else:
        _take_all(task, executor, reporter)
    sweep_all(out)
    done = result(study, task)
    write_tuning(done, space)
    return done


def _take_all(task: SearchTask, executor: Executor, reporter: TrialReporter) -> None:
    """One search task per worker; each takes trials until none is left. A worker that dies is replaced."""
    deaths, began = 0, time.monotonic()
    over = began
    with reporter.progress, executor.begin(take_trials, None):
        workers = min(task.wanted.trials, executor.workers)
        for number in range(workers):
            executor.submit(f"worker {number}", replace(task, seed=number))
        left = set(range(workers))
        while left:
            for name, outcome in executor.wait(1.0):
                number = int(name.partition(" ")[2])
                if isinstance(outcome, Crashed):
                    raise outcome.error if isinstance(outcome.error, HoldfastError) else RuntimeError(outcome.trace)
                if isinstance(outcome, WorkerDied):
                    deaths += 1
                    gone = f"{deaths} workers died, the last because {outcome.why}; the same command continues"
                    require(deaths <= MOST_RETRIES * workers, gone)
                    spent = time.monotonic() - began
                    left_s = None if task.seconds is None else max(0.0, task.seconds - spent)
                    executor.submit(name, replace(task, seed=number + workers * deaths, seconds=left_s))
                else:
                    left.discard(number)
            reporter.look()
            over = over if is_over(reporter.study, task) else time.monotonic()
            if time.monotonic() - over > PATIENCE:  # others have done what these were at: they hang, or are stopped
                for number in left:
                    executor.kill(f"worker {number}")
                left.clear()
