"""Optuna's study of a search: how workers take trials from it, continue those of dead workers, and what it adds up to.

Open this file to change how a trial is trained, pruned or retried. Optuna is the extra ``tune``; it keeps the study in
SQLite beside the runs, or in a database that machines share.
"""

from __future__ import annotations

import json
import re
import shutil
import time
import warnings
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

from holdfast.comparisons.comparison_result import TunedTrial, Tuning
from holdfast.comparisons.search_space import Space, shown_values, suggested
from holdfast.comparisons.single_run import held_out_score
from holdfast.errors import HoldfastError, Interrupted, require
from holdfast.executors.leases import Lease, LeasedProgress, holder, leased
from holdfast.settings import TrainSettings, flatten
from holdfast.settings.command_settings import SearchSettings
from holdfast.train.api import train
from holdfast.train.progress import Progress
from holdfast.train.step_parts import Diverged

MOST_RETRIES = 3
"""Times that a trial whose worker died is continued."""
FOLDER, CONTINUES, RETRIES, SPARE = "folder", "continues", "retries", "over_budget"
"""What is noted beside a trial: its run folder, the trial that it continues, how often, and that it came too late."""


@dataclass(frozen=True)
class SearchTask:
    """What a worker needs to take trials until the budget is spent. seconds: left of it, where it is one of time.
    at_once: whether others take trials too. seed: another for each worker."""

    out: Path
    settings: TrainSettings
    space: Space
    wanted: SearchSettings
    seconds: float | None
    lease: float
    at_once: bool
    seed: int = 0

    @property
    def storage(self) -> str:
        """URL of the study. psycopg is the driver of PostgreSQL that is maintained; SQLAlchemy's default is the one
        before."""
        given = self.wanted.storage or f"sqlite:///{self.out / 'study.db'}"
        return given.replace("postgresql://", "postgresql+psycopg://", 1)


def take_trials(task: SearchTask, shared: Any, *, told: Callable[[], None] | None = None) -> None:
    """Take trials of a study until its budget is spent, those of dead workers included."""
    optuna, study = import_optuna(), open_study(task)
    until = None if task.seconds is None else time.monotonic() + task.seconds
    while until is None or time.monotonic() < until:
        _retry_dead(study, task, optuna)
        if is_over(study, task):
            return
        if not _states(study)["WAITING"] and _spent(study) >= task.wanted.trials:
            time.sleep(0.5)  # others are at work: one of them may die
            continue
        try:
            _take_trial(study, task)
        finally:
            if told is not None:
                told()


def is_over(study: Any, task: SearchTask) -> bool:
    """Whether the budget of trials is spent, and none of them is under way or waits to be continued."""
    states = _states(study)
    return not states["WAITING"] and not states["RUNNING"] and _spent(study) >= task.wanted.trials


def _states(study: Any) -> Counter[str]:
    return Counter(trial.state.name for trial in study.get_trials(deepcopy=False))


def _take_trial(study: Any, task: SearchTask) -> None:
    """Train one trial. Nothing comes of one that others took over because this worker was asleep, or seemed to be."""
    numbers: list[int] = []
    raised: list[BaseException] = []

    def objective(trial: Any) -> float | tuple[float, ...]:
        numbers.append(trial.number)
        try:
            return _objective(trial, task)
        except BaseException as error:
            raised.append(error)
            raise

    try:
        study.optimize(objective, n_trials=1, catch=(Diverged,))
    except ValueError as error:  # Optuna is told the end of a trial that has been failed meanwhile
        if error in raised:
            raise
    trial = study.get_trials(deepcopy=False)[numbers[0]]
    if trial.state.name in ("COMPLETE", "PRUNED") and FOLDER in trial.user_attrs:
        # Not before the study knows the end: whoever continues a trial needs the checkpoint.
        shutil.rmtree(task.out / trial.user_attrs[FOLDER] / "checkpoint", ignore_errors=True)


def _objective(trial: Any, task: SearchTask) -> float | tuple[float, ...]:
    optuna, study = import_optuna(), trial.study
    name = trial.user_attrs.get(FOLDER, f"trial-{trial.number:04d}")
    if _spent(study, before=trial.number) >= task.wanted.trials and CONTINUES not in trial.user_attrs:
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
            data = train(settings, out=lease.folder, resume=True, progress=shown).data
            scores = tuple(held_out_score(lease.folder, settings, data, rule) for rule in task.wanted.objectives)
    except Interrupted:
        _continue_later(study, trial.number, trial.params, trial.user_attrs)
        raise
    return scores if len(scores) > 1 else scores[0]


class _TrialProgress(LeasedProgress):
    """Ends a trial that is behind the others, by accuracy on the validation split after each epoch."""

    def __init__(self, lease: Lease, trial: Any, task: SearchTask) -> None:
        super().__init__(lease)
        self.trial, self.prunes = trial, task.wanted.prunes

    def epoch(self, record: Mapping[str, Any], epochs: int) -> None:
        super().epoch(record, epochs)
        if not self.prunes or "val_accuracy" not in record or record["epoch"] >= epochs:
            return
        self.trial.report(record["val_accuracy"], record["step"])
        if self.trial.should_prune():
            raise import_optuna().TrialPruned(f"behind the others after epoch {record['epoch']}")


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
            _continue_later(study, trial.number, trial.params, trial.user_attrs)


def _continue_later(study: Any, number: int, params: Any, noted: Mapping[str, Any]) -> None:
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


def open_study(task: SearchTask) -> Any:
    """The study in its storage, made if it is not there. What its trials searched must be what is asked for now."""
    optuna = import_optuna()

    def stale(study: Any, trial: Any) -> None:
        _continue_later(study, trial.number, trial.params, trial.user_attrs)

    kind: dict[str, Any] = {"connect_args": {"timeout": 60}} if task.storage.startswith("sqlite") else {}
    beats = {"heartbeat_interval": max(1, round(task.lease / 6)), "grace_period": max(2, round(task.lease))}
    try:
        storage = optuna.storages.RDBStorage(
            task.storage, engine_kwargs=kind, heartbeat_stale_trial_callback=stale, **beats
        )
    except Exception as error:  # of SQLAlchemy, of a driver that is missing, or of the network
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        lost = f"cannot use the storage {task.storage}: {reason}; correct its URL"
        raise HoldfastError(_without_password(lost)) from error
    sampler = optuna.samplers.TPESampler(
        seed=task.settings.loop.seed + task.seed, multivariate=True, group=True, constant_liar=task.at_once
    )
    pruner = optuna.pruners.MedianPruner() if task.wanted.prunes else optuna.pruners.NopPruner()
    study = optuna.create_study(
        study_name=task.out.name, storage=storage, sampler=sampler, pruner=pruner, load_if_exists=True,
        directions=["maximize"] * len(task.wanted.objectives),
    )  # fmt: skip
    asked = {"objectives": list(task.wanted.objectives), "space": {k: str(v) for k, v in task.space.items()}}
    asked["settings"] = {k: v for k, v in flatten(task.settings).items() if k not in ("device", "workers", "root")}
    known = study.user_attrs.get("asked")
    require(
        known is None or known == json.loads(json.dumps(asked, default=str)),
        f"{task.out} holds a search of other settings, space or objectives; choose another --out",
    )
    if known is None:
        study.set_user_attr("asked", json.loads(json.dumps(asked, default=str)))
    return study


def _without_password(text: str) -> str:
    """
    >>> _without_password("postgresql://me:secret@host/db")
    'postgresql://me:***@host/db'
    """
    return re.sub(r"(://[^:/@\s]*):[^@\s]*@", r"\1:***@", text)


def import_optuna() -> Any:
    try:
        optuna = import_module("optuna")
    except ImportError as error:
        raise HoldfastError("tune needs the package optuna; pip install 'holdfast[tune]'") from error
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    warnings.filterwarnings("ignore", category=optuna.exceptions.ExperimentalWarning)
    return optuna


class TrialReporter:
    """Says of each trial how it ended."""

    def __init__(self, study: Any, task: SearchTask, progress: Progress) -> None:
        self.study, self.task, self.progress = study, task, progress
        self._told = {trial.number for trial in study.get_trials(deepcopy=False) if trial.state.is_finished()}
        progress.begin("trials", 1, task.wanted.trials, min(task.wanted.trials, len(self._told)))

    def look(self) -> None:
        for trial in self.study.get_trials(deepcopy=False):
            if trial.state.is_finished() and trial.number not in self._told and not trial.user_attrs.get(SPARE):
                self._told.add(trial.number)
                self.progress.note(_tuned(trial, self.task).summary(self.task.wanted.objectives))
                self.progress.step()


def _tuned(trial: Any, task: SearchTask) -> TunedTrial:
    state = {"COMPLETE": "complete", "PRUNED": "pruned", "FAIL": "failed"}.get(trial.state.name, trial.state.name)
    name = trial.user_attrs.get(FOLDER, f"trial-{trial.number:04d}")
    scores = tuple(trial.values) if state == "complete" else ()
    return TunedTrial(name, state, shown_values(trial.params, task.space), scores)


def result(study: Any, task: SearchTask) -> Tuning:
    """The trials, the front and the best settings. What was continued counts once, what came too late not at all."""
    trials = study.get_trials(deepcopy=False)
    again = {trial.user_attrs[CONTINUES] for trial in trials if CONTINUES in trial.user_attrs}
    kept = [t for t in trials if t.state.is_finished() and t.number not in again and not t.user_attrs.get(SPARE)]
    complete = [trial for trial in kept if trial.state.name == "COMPLETE"]
    lost = f"none of {len(kept)} trials in {task.out} came to an end"
    require(len(complete) > 0, f"{lost}; give them more time, or a narrower --space")
    front = sorted(study.best_trials, key=lambda trial: [-value for value in trial.values])
    best = suggested(import_optuna().trial.FixedTrial(front[0].params), task.settings, task.space)
    shown, whole = (tuple(_tuned(trial, task) for trial in own) for own in (front, kept))
    return Tuning(task.out, task.wanted.objectives, whole, shown, best)
