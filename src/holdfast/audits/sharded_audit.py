"""An audit in shards: what checks compute of single samples, shared out to workers, and read back.

First all shards compute predictions, then the passes of the checks (sample_passes.py); the checks themselves run
afterwards in one process, on the joined rows, as they do without shards. A pass that a shard cannot compute is left to
that process, where it ends as it would have (docs/decisions/0017-audit-shards.md).

Open this file to change which shards there are, and who computes them; shard_workers.py has what a worker does, and
shard_rows.py how rows are kept and found again.
"""

from __future__ import annotations

import math
import secrets
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any, Final, Self

from holdfast.audits.audit_data import Tell
from holdfast.audits.open_models import NO_MEMORY, AuditedModel, nameless
from holdfast.audits.sample_passes import SamplePass, share_out
from holdfast.audits.shard_rows import ShardRows, shard_name
from holdfast.audits.shard_workers import PassPart, Sent, ShardTask, compute_shard, finished, passes_of
from holdfast.audits.subject import PREDICTIONS, Subject
from holdfast.data.loaders import WORKERS
from holdfast.errors import HoldfastError, require
from holdfast.executors import Executor, make_executor
from holdfast.executors.executor_protocol import ThisProcess
from holdfast.executors.leased_tasks import run_tasks
from holdfast.executors.leases import sweep_all
from holdfast.settings.audit_settings import AuditSettings
from holdfast.settings.command_settings import EngineSettings
from holdfast.train.distributed import Ranks
from holdfast.train.progress import Progress

FOLDER: Final = "shards"
ALL_CLASSES: Final = " (all classes)"
"""After the name of a model that is also read by all of its classes."""


class ShardedAudit:
    """The shards of an audit, from the first to the last. Used as a context: at its end workers are gone.

    place: the folder of the audit. checks: those to run, with their settings. key: all that the numbers of a model
    depend on. ranks: the processes that torchrun started, each of which computes shards, or None.
    """

    def __init__(
        self,
        place: Path,
        request: AuditSettings,
        checks: Mapping[str, Any],
        key: Callable[[AuditedModel], Mapping[str, Any]],
        *,
        ranks: Ranks | None,
        progress: Progress,
        tell: Tell,
    ) -> None:
        assert request.shards is not None
        self.folder, self.request, self.shards = place.absolute() / FOLDER, request, request.shards
        self.checks, self.key, self.ranks, self.progress, self.tell = checks, key, ranks, progress, tell
        self._open = ExitStack()
        self._executor: Executor | None = None
        self._nonce = secrets.token_hex(8)
        if ranks is not None:
            self._nonce = str((ranks.from_first({"nonce": self._nonce}) or {})["nonce"])

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self._open.__exit__(*error)  # type: ignore[arg-type]

    # ---- predictions ----------------------------------------------------------------------------------------------

    def predict(self, models: Sequence[AuditedModel]) -> None:
        """Predictions of all models, by shards; their subjects find them afterwards."""
        for model in models:
            base = self._base(model, before=True)
            model.subject = replace(
                model.subject, kept_rows=ShardRows(self.folder, model.name, self.shards, (base, base))
            )
            if model.whole is not None:
                rows = ShardRows(self.folder, model.name + ALL_CLASSES, self.shards, (base, base))
                model.whole = replace(model.whole, kept_rows=rows)
        while short := self._run(PREDICTIONS, models, lambda model, check: True):
            for model in models:
                if {model.name, model.name + ALL_CLASSES} & short:
                    require(model.subject.batch_size > 1, NO_MEMORY)
                    model.subject, note = model.subject.with_half_the_batch()
                    model.whole = None if model.whole is None else model.whole.with_half_the_batch()[0]
                    self.tell(f"{model.name}: {note}")

    def compute(self, models: Sequence[AuditedModel], needed: Callable[[AuditedModel, str], bool]) -> None:
        """The passes of all checks, by shards. needed: whether a check of a model has still to be measured."""
        for model in models:
            before = self._base(model, before=True)
            rows = ShardRows(self.folder, model.name, self.shards, (before, self._base(model, before=False)))
            model.subject = replace(model.subject, kept_rows=rows)
        self._run("checks", models, needed)
        if self.ranks is None or self.ranks.first:
            self._sweep()

    def _base(self, model: AuditedModel, *, before: bool) -> dict[str, Any]:
        """What rows of a model depend on. before: it has not been asked yet.

        Where only answers tell models apart, those of another command may be another model's. So its predictions are
        not taken, and what rests on them only where they are the same.
        """
        base = {k: v for k, v in self.key(model).items() if k in ("model", "data", "device", "seed", "precision")}
        if before:
            named = {k: v for k, v in base["model"].items() if k != "answers_hash"}
            base |= {"model": named, "command": self._nonce if nameless(model) else ""}
        return base

    # ---- one round ------------------------------------------------------------------------------------------------

    def _run(self, stage: str, models: Sequence[AuditedModel], needed: Callable[[AuditedModel, str], bool]) -> set[str]:
        """Bring every shard of a stage to an end; the models for which memory was short."""
        tasks = self._tasks(stage, models, needed)
        todo = [task for task in tasks if finished(task) is None]
        done, short, failed = len(tasks) - len(todo), set[str](), dict[str, None]()
        if done:
            self.tell(f"shards: {stage}: {done} of {len(tasks)} computed before, taken from {self.folder}")
        if todo:
            self.progress.begin(f"shards: {stage}", 1, len(tasks), done)
            mine = self.ranks.rank if self.ranks is not None else 0
            todo = todo[mine % len(todo) :] + todo[: mine % len(todo)]  # ranks begin with another each
            running = run_tasks(
                todo, self._workers(models), finished=finished, lease=self.request.lease, show=self._show
            )
            for task, outcome in running:
                done += 1
                self.progress.step()
                self.tell(f"shards: {task.name} computed, {done} of {len(tasks)}")
                short |= set(outcome.short)
                failed |= dict.fromkeys(outcome.failed)
        if self.ranks is not None:
            self.ranks.wait_for_all()
            shorts = self.ranks.exchange({"short": sorted(short)})
            short = {name for theirs in shorts for name in theirs["short"]}
        for text in failed if not short else ():
            self.tell(f"shards: {text}; left to the audit itself")
        return short

    def _show(self, running: Mapping[str, str], held: Sequence[str]) -> None:
        said = [f"{name}: {status}" for name, status in running.items() if status]
        self.progress.doing("; ".join([*said, *(f"{name}: in another process" for name in held)]))

    def _tasks(
        self, stage: str, models: Sequence[AuditedModel], needed: Callable[[AuditedModel, str], bool]
    ) -> list[ShardTask]:
        """All shards of a stage with what each has to compute.

        Who computes what depends on the models, the checks asked for and the number of shards alone, and not on what
        was computed before.
        """
        every: dict[str, tuple[PassPart, SamplePass, bool]] = {}
        for name, model, subject in subjects_of(models):
            checks = [""] if stage == PREDICTIONS else [c for c in self.checks if c not in model.not_applicable]
            rows = subject.kept_rows
            assert isinstance(rows, ShardRows)
            for check in checks:
                for one in passes_of(subject, check, self.checks.get(check)):
                    part = PassPart(name, check, one.name, (), subject.batch_size, rows.key(subject, one))
                    known = f"{name}/{one.name}"
                    require(known not in every, f"two passes are called {one.name}; rename that of check {check}")
                    every[known] = part, replace(one, name=known), needed(model, check)
        shared = share_out([one for _, one, _ in every.values()], self.shards)
        order = {(part.model, part.name): i for i, (part, _, _) in enumerate(every.values())}
        tasks = []
        for shard, own in enumerate(shared):
            parts = [replace(every[k][0], blocks=tuple(blocks)) for k, blocks in own.items() if every[k][2]]
            if parts:
                parts.sort(key=lambda part: order[part.model, part.name])  # passes of a check share what they made
                tasks.append(ShardTask(shard_name(stage, shard, self.shards), self.folder, tuple(parts)))
        return tasks

    def _workers(self, models: Sequence[AuditedModel]) -> Executor:
        """Opened when the first shard needs it, for both rounds."""
        if self._executor is not None:
            return self._executor
        request, subjects = self.request, {name: subject for name, _, subject in subjects_of(models)}
        settings = EngineSettings("auto", request.threads, request.engine, request.address, request.lease)
        if self.ranks is not None:
            executor: Executor = ThisProcess(threads=request.threads or 1)
        else:
            executor = make_executor(settings, device=request.device, calls=self.shards)
        alone = isinstance(executor, ThisProcess)
        if not alone:  # each process reads images by itself
            at_once = self.shards if request.engine == "ray" else executor.workers
            usual = {k: WORKERS if v.workers is None else v.workers for k, v in subjects.items()}
            subjects = {k: replace(v, workers=math.ceil(usual[k] / at_once)) for k, v in subjects.items()}
        call: Any = compute_shard
        if alone:
            call = lambda task, sent: compute_shard(task, sent, show=self.progress.doing)  # noqa: E731
        try:
            executor.begin(call, Sent(subjects, self.checks))
        except HoldfastError as error:
            why = f"the model, its data or a setting cannot be sent to other processes: {error.__cause__ or error}"
            remedy = "name them by files, start the audit with torchrun, or leave --shards out"
            raise HoldfastError(f"{why}; {remedy}") from error
        self._open.enter_context(executor)
        self._executor = executor
        return executor

    def _sweep(self) -> None:
        """Remove what another number of shards has left, and traces of workers that died."""
        sweep_all(self.folder)
        known = {shard_name(s, i, self.shards) for s in (PREDICTIONS, "checks") for i in range(self.shards)}
        for path in self.folder.iterdir() if self.folder.is_dir() else ():
            if path.is_dir() and path.name not in known and not path.name.startswith("."):
                shutil.rmtree(path, ignore_errors=True)


def subjects_of(models: Sequence[AuditedModel]) -> Iterator[tuple[str, AuditedModel, Subject]]:
    for model in models:
        yield model.name, model, model.subject
        if model.whole is not None:
            yield model.name + ALL_CLASSES, model, model.whole
