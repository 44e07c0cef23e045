"""``holdfast tune``: settings that do best on held-out data, searched by Optuna; the test set is never looked at.

Every trial is a run folder under a lease, as in a comparison: one whose worker died is continued by another. Optuna
(extra ``tune``) keeps the study in SQLite beside the runs, or in a database that machines share.
"""

from __future__ import annotations

import json
import math
import shutil
import time
import warnings
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from importlib import import_module
from pathlib import Path
from typing import Any, Literal

import yaml

from holdfast.comparisons.executors import Crashed, Executor, WorkerDied, make_executor
from holdfast.comparisons.executors.this_process import ThisProcess
from holdfast.comparisons.held_out_scores import held_out_score, require_groups
from holdfast.comparisons.leases import SECONDS, Lease, LeasedProgress, holder, leased, sweep_all
from holdfast.comparisons.recipes import read_recipe
from holdfast.comparisons.search_space import Space, check_space, default_space, given_space, shown_values, suggested
from holdfast.errors import HoldfastError, Interrupted, require, require_known
from holdfast.files import write_atomic
from holdfast.reports.blocks import Cell, Column, Table
from holdfast.settings import TrainSettings, build, flatten, layered, read_config
from holdfast.settings.engine_settings import EngineSettings
from holdfast.settings.training import CellRule
from holdfast.train.api import train
from holdfast.train.meters import Diverged
from holdfast.train.preparing import choose_ahead, load_data
from holdfast.train.progress import Progress, make_progress

OBJECTIVES: tuple[CellRule, ...] = ("val-average", "val-worst-class", "val-worst-group")
BEST = "best.yaml"
MOST_RETRIES = 3
"""Times that a trial whose worker died is continued."""
FOLDER, CONTINUES, RETRIES, SPARE = "folder", "continues", "retries", "over_budget"
"""What is noted beside a trial: its run folder, the trial that it continues, how often, and that it came too late."""


@dataclass(frozen=True)
class TunedTrial:
    """One trial: what was tried, the scores in the order of the objectives (empty where it did not come to an end), and
    how it ended: complete, pruned or failed."""

    name: str
    state: str
    values: Mapping[str, Any]
    scores: tuple[float, ...] = ()


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
                *(Cell(_brief(trial.values.get(name, ""))) for name in names),
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


@dataclass(frozen=True)
class SearchTask:
    """What a worker needs to take trials until the budget is spent. seed: another for each worker."""

    out: Path
    settings: TrainSettings
    space: Space
    objectives: tuple[CellRule, ...]
    trials: int
    seconds: float | None
    pruning: str
    storage: str
    lease: float
    at_once: bool
    seed: int = 0


def tune(
    data: Any = None,
    *,
    out: str | Path,
    recipe: str | None = None,
    config: str | Path | None = None,
    space: Mapping[str, Any] | None = None,
    objectives: Sequence[CellRule] = ("val-average",),
    trials: int = 30,
    minutes: float | None = None,
    pruning: Literal["median", "none"] = "median",
    storage: str | None = None,
    parallel: int | str | None = None,
    threads: int | None = None,
    engine: Literal["local", "ray"] = "local",
    address: str | None = None,
    lease: float = SECONDS,
    progress: bool | None = None,
    **settings: Any,
) -> Tuning:
    """Search settings that score best on held-out data.

    data, recipe, config and settings: as of ``holdfast.compare``; data has to be held out (``val=0.1``, or a set with a
    validation split). space: ``{"lr": (1e-4, 1e-1, "log"), "batch_size": [32, 64]}``; by default learning rate, weight
    decay, and the numbers that the method and the ascent declare. objectives: scores of the validation split; with
    several, the trials that no other beats in all of them are the result. trials, minutes: what may be spent; the same
    call continues a search that was ended, and one with more trials extends it. pruning: trials that are behind half
    of the others at the same step are ended (one objective, val-average, only). storage: URL of a database that
    several machines share, such as ``postgresql://user@host/db``. The rest is as of ``holdfast.compare``.

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
    if data is not None:
        settings["data"] = str(data)
    file = read_config(Path(config), settings) if config else {}
    base = build(TrainSettings, layered(read_recipe(recipe) if recipe else {}, file, settings))
    many = None if parallel is None else str(parallel)
    where = EngineSettings(parallel=many, threads=threads, engine=engine, address=address, lease=lease)
    budget: dict[str, Any] = {"trials": trials, "minutes": minutes, "pruning": pruning, "storage": storage}
    own = None if space is None else given_space(space)
    shown = make_progress(progress)
    return search(base, Path(out), space=own, objectives=objectives, where=where, progress=shown, **budget)


def search(
    base: TrainSettings,
    out: Path,
    *,
    space: Space | None = None,
    objectives: Sequence[CellRule] = ("val-average",),
    trials: int = 30,
    minutes: float | None = None,
    pruning: str = "median",
    storage: str | None = None,
    where: EngineSettings | None = None,
    progress: Progress | None = None,
) -> Tuning:
    """:func:`tune` of resolved settings."""
    optuna = _optuna()
    progress, where = progress or Progress(), where or EngineSettings()
    require(trials >= 1, f"trials must be >= 1, got {trials}")
    require(minutes is None or minutes > 0, f"minutes must be > 0, got {minutes}")
    require(len(objectives) > 0, f"objectives names none; use {', '.join(OBJECTIVES)}")
    for name in objectives:
        require_known("objective", name, OBJECTIVES)
    if space is not None:
        check_space(base, space)
    found = load_data(base.resolved())
    held = f"{base.data.name} has no validation split to choose on; hold one out with --val 0.1"
    require(found.val is not None, held)
    for name in objectives:
        require_groups(name, found)
    base = choose_ahead(base).settings  # the same for all trials, and what ranges lie around
    space = default_space(base) if space is None else space
    out.mkdir(parents=True, exist_ok=True)
    url = _url(storage or f"sqlite:///{out.resolve() / 'study.db'}")
    executor = make_executor(where, device=base.loop.device, calls=trials)
    alone, seconds = isinstance(executor, ThisProcess), None if minutes is None else 60 * minutes
    budget: dict[str, Any] = {"trials": trials, "seconds": seconds, "pruning": pruning}
    place: dict[str, Any] = {"storage": url, "lease": where.lease, "at_once": not alone}
    task = SearchTask(out.resolve(), base, space, tuple(objectives), **budget, **place)
    study = _study(task)
    reporter = _Reporter(study, task, progress)
    if alone:
        with executor, progress:
            take_trials(task, None, told=reporter.look)
    else:
        _take_all(task, executor, reporter)
    sweep_all(out)
    return _result(study, task, optuna)


def _take_all(task: SearchTask, executor: Executor, reporter: _Reporter) -> None:
    """One search task per worker; each takes trials until none is left. A worker that dies is replaced."""
    deaths, began = 0, time.monotonic()
    with reporter.progress, executor.begin(take_trials, None):
        workers = min(task.trials, executor.workers)
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


def take_trials(task: SearchTask, shared: Any, *, told: Any = None) -> None:
    """Take trials of a study until its budget is spent, those of dead workers included."""
    optuna, study = _optuna(), _study(task)
    until = None if task.seconds is None else time.monotonic() + task.seconds
    while until is None or time.monotonic() < until:
        _retry_dead(study, task, optuna)
        states = Counter(trial.state.name for trial in study.get_trials(deepcopy=False))
        if not states["WAITING"] and _spent(study) >= task.trials:
            if not states["RUNNING"]:
                return
            time.sleep(0.5)  # others are at work: one of them may die
            continue
        try:
            study.optimize(lambda trial: _objective(trial, task), n_trials=1, catch=(Diverged,))
        finally:
            if told is not None:
                told()


def _objective(trial: Any, task: SearchTask) -> float | tuple[float, ...]:
    optuna, study = _optuna(), trial.study
    name = trial.user_attrs.get(FOLDER, f"trial-{trial.number:04d}")
    if _spent(study, before=trial.number) >= task.trials and CONTINUES not in trial.user_attrs:
        trial.set_user_attr(SPARE, True)
        raise optuna.TrialPruned
    trial.set_user_attr(FOLDER, name)
    settings = suggested(trial, task.settings, task.space)
    before = holder(task.out, name) if CONTINUES in trial.user_attrs else None
    evict = "" if before is None else before.token
    try:
        with leased(task.out, name, seconds=task.lease, evict=evict) as lease:
            require(lease is not None, f"{task.out / name} is in use by another search; choose another --out")
            assert lease is not None
            lease.adopt()
            shown = _TrialProgress(lease, trial, task)
            try:
                data = train(settings, out=lease.folder, resume=True, progress=shown).data
            except optuna.TrialPruned:
                shutil.rmtree(lease.folder / "checkpoint", ignore_errors=True)
                raise
            scores = tuple(held_out_score(lease.folder, settings, data, rule) for rule in task.objectives)
            shutil.rmtree(lease.folder / "checkpoint", ignore_errors=True)  # nothing continues a finished trial
    except Interrupted:
        _continue_later(study, trial.number, trial.params, trial.user_attrs, task)
        raise
    return scores if len(scores) > 1 else scores[0]


class _TrialProgress(LeasedProgress):
    """Ends a trial that is behind the others, by accuracy on the validation split after each epoch."""

    def __init__(self, lease: Lease, trial: Any, task: SearchTask) -> None:
        super().__init__(lease)
        self.trial, self.prunes = trial, task.pruning == "median" and task.objectives == ("val-average",)

    def epoch(self, record: Mapping[str, Any], epochs: int) -> None:
        super().epoch(record, epochs)
        if not self.prunes or "val_accuracy" not in record or record["epoch"] >= epochs:
            return
        self.trial.report(record["val_accuracy"], record["step"])
        if self.trial.should_prune():
            raise _optuna().TrialPruned(f"behind the others after epoch {record['epoch']}")


def _retry_dead(study: Any, task: SearchTask, optuna: Any) -> None:
    """Trials whose worker died are failed and continued: at once where this machine can tell, else once their
    heartbeat in the database has stopped."""
    optuna.storages.fail_stale_trials(study)
    for trial in study.get_trials(deepcopy=False, states=(optuna.trial.TrialState.RUNNING,)):
        found = holder(task.out, trial.user_attrs.get(FOLDER, ""))
        if FOLDER in trial.user_attrs and found is not None and found.surely_dead:
            try:
                study.tell(trial.number, state=optuna.trial.TrialState.FAIL)
            except (ValueError, RuntimeError):  # another worker was faster
                continue
            _continue_later(study, trial.number, trial.params, trial.user_attrs, task)


def _continue_later(study: Any, number: int, params: Any, noted: Mapping[str, Any], task: SearchTask) -> None:
    """Let the next free worker continue a trial in its folder."""
    retries = noted.get(RETRIES, 0) + 1
    if retries <= MOST_RETRIES and FOLDER in noted:
        kept = {FOLDER: noted[FOLDER], CONTINUES: number, RETRIES: retries}
        study.enqueue_trial(params, user_attrs=kept)


def _spent(study: Any, before: int | None = None) -> int:
    """Trials that count: each once, however often it was continued."""
    trials = study.get_trials(deepcopy=False)
    again = {trial.user_attrs[CONTINUES] for trial in trials if CONTINUES in trial.user_attrs}
    return sum(
        trial.number not in again and not trial.user_attrs.get(SPARE) and (before is None or trial.number < before)
        for trial in trials
        if trial.state.name != "WAITING"
    )


def _study(task: SearchTask) -> Any:
    """The study in its storage, made if it is not there. What its trials searched must be what is asked for now."""
    optuna = _optuna()

    def stale(study: Any, trial: Any) -> None:
        _continue_later(study, trial.number, trial.params, trial.user_attrs, task)

    kind: dict[str, Any] = {"connect_args": {"timeout": 60}} if task.storage.startswith("sqlite") else {}
    beats = {"heartbeat_interval": max(1, round(task.lease / 6)), "grace_period": max(2, round(task.lease))}
    try:
        storage = optuna.storages.RDBStorage(
            task.storage, engine_kwargs=kind, heartbeat_stale_trial_callback=stale, **beats
        )
    except Exception as error:  # of SQLAlchemy, of a driver that is missing, or of the network
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise HoldfastError(f"cannot use the storage {task.storage}: {reason}; correct its URL") from error
    sampler = optuna.samplers.TPESampler(
        seed=task.settings.loop.seed + task.seed, multivariate=True, group=True, constant_liar=task.at_once
    )
    pruner = optuna.pruners.MedianPruner() if task.pruning == "median" else optuna.pruners.NopPruner()
    study = optuna.create_study(
        study_name=task.out.name, storage=storage, sampler=sampler, pruner=pruner, load_if_exists=True,
        directions=["maximize"] * len(task.objectives),
    )  # fmt: skip
    asked = {"objectives": list(task.objectives), "space": {k: str(v) for k, v in task.space.items()}}
    asked["settings"] = {k: v for k, v in flatten(task.settings).items() if k not in ("device", "workers", "root")}
    known = study.user_attrs.get("asked")
    require(
        known is None or known == json.loads(json.dumps(asked, default=str)),
        f"{task.out} holds a search of other settings, space or objectives; choose another --out",
    )
    if known is None:
        study.set_user_attr("asked", json.loads(json.dumps(asked, default=str)))
    return study


def _url(storage: str) -> str:
    """psycopg is the driver of PostgreSQL that is maintained; SQLAlchemy's default is the one before."""
    return storage.replace("postgresql://", "postgresql+psycopg://", 1)


def _optuna() -> Any:
    try:
        optuna = import_module("optuna")
    except ImportError as error:
        raise HoldfastError("tune needs the package optuna; pip install 'holdfast[tune]'") from error
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    warnings.filterwarnings("ignore", category=optuna.exceptions.ExperimentalWarning)
    return optuna


class _Reporter:
    """Says of each trial how it ended."""

    def __init__(self, study: Any, task: SearchTask, progress: Progress) -> None:
        self.study, self.task, self.progress = study, task, progress
        self._told = {trial.number for trial in study.get_trials(deepcopy=False) if trial.state.is_finished()}
        progress.begin("trials", 1, task.trials, min(task.trials, len(self._told)))

    def look(self) -> None:
        for trial in self.study.get_trials(deepcopy=False):
            if trial.state.is_finished() and trial.number not in self._told and not trial.user_attrs.get(SPARE):
                self._told.add(trial.number)
                own = _tuned(trial, self.task)
                shown = ", ".join(f"{name} {_brief(value)}" for name, value in own.values.items())
                scores = zip(self.task.objectives, own.scores, strict=False)
                ended = ", ".join(f"{name} {100 * score:.1f} %" for name, score in scores) or own.state
                self.progress.note(f"{own.name}: {ended} ({shown})")
                self.progress.step()


def _brief(value: Any) -> str:
    return f"{value:.3g}" if isinstance(value, float) else str(value)


def _tuned(trial: Any, task: SearchTask) -> TunedTrial:
    state = {"COMPLETE": "complete", "PRUNED": "pruned", "FAIL": "failed"}.get(trial.state.name, trial.state.name)
    name = trial.user_attrs.get(FOLDER, f"trial-{trial.number:04d}")
    scores = tuple(trial.values) if state == "complete" else ()
    return TunedTrial(name, state, shown_values(trial.params, task.space), scores)


def _result(study: Any, task: SearchTask, optuna: Any) -> Tuning:
    """The trials, the front and the best settings, written beside the runs."""
    trials = study.get_trials(deepcopy=False)
    again = {trial.user_attrs[CONTINUES] for trial in trials if CONTINUES in trial.user_attrs}
    kept = [t for t in trials if t.state.is_finished() and t.number not in again and not t.user_attrs.get(SPARE)]
    complete = [trial for trial in kept if trial.state.name == "COMPLETE"]
    lost = f"none of {len(kept)} trials in {task.out} came to an end"
    require(len(complete) > 0, f"{lost}; give them more time, or a narrower --space")
    front = sorted(study.best_trials, key=lambda trial: [-value for value in trial.values])
    best = suggested(optuna.trial.FixedTrial(front[0].params), task.settings, task.space)
    shown = tuple(_tuned(trial, task) for trial in front)
    done = Tuning(task.out, task.objectives, tuple(_tuned(trial, task) for trial in kept), shown, best)
    head = f"# {front[0].user_attrs[FOLDER]} of {len(kept)} trials: " + ", ".join(
        f"{name} {score:.4f}" for name, score in zip(task.objectives, front[0].values, strict=True)
    )
    train_it = f"holdfast train --config {task.out / BEST}"
    text = f"{head}, on held-out data\n# {train_it}\n" + yaml.safe_dump(flatten(best), sort_keys=False)
    write_atomic(task.out / BEST, text.encode())
    rows = [{"trial": t.name, "state": t.state, "settings": dict(t.values), "scores": t.scores} for t in done.trials]
    record = {"objectives": task.objectives, "space": {k: str(v) for k, v in task.space.items()}, "trials": rows}
    record |= {"front": [trial.name for trial in done.front], "best": done.front[0].name}
    write_atomic(task.out / "tuning.json", json.dumps(record, indent=1, default=str).encode() + b"\n")
    return done
