"""An audit in shards: what checks compute of single samples, shared out to workers, kept as Parquet, and read back.

Open this file to change what a shard is, how it is redone, or how its rows are found again. First all shards compute
predictions, then the passes of the checks (sample_passes.py); the checks themselves run afterwards in one process, on
the joined rows, as they do without shards. A pass that a shard cannot compute is left to that process, where it ends
as it would have. Workers, leases and what happens when one dies are those of comparisons
(docs/decisions/0017-audit-shards.md).
"""

from __future__ import annotations

import copy
import hashlib
import json
import math
import secrets
import shutil
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final, Literal, Self

import torch
from torch import Tensor, nn

import holdfast
from holdfast.audits.audit_data import Tell
from holdfast.audits.open_models import NO_MEMORY, AuditedModel, nameless
from holdfast.audits.sample_passes import SamplePass, share_out
from holdfast.audits.subject import PREDICTIONS, Subject
from holdfast.data.parquet_rows import growing_rows, read_rows, rows_about
from holdfast.errors import HoldfastError, first_line, require
from holdfast.executors import Executor, make_executor
from holdfast.executors.leased_tasks import LeasedTask, run_tasks
from holdfast.executors.leases import Lease, LeaseLost, leased, sweep_all
from holdfast.executors.this_process import ThisProcess
from holdfast.reports.findings_file import write_json
from holdfast.settings.audit_settings import AuditSettings
from holdfast.settings.engine_settings import EngineSettings
from holdfast.train.distributed import Ranks
from holdfast.train.progress import Progress

FOLDER: Final = "shards"
DONE: Final = "shard.json"
"""What a shard has computed, written when it has computed all."""
GROUP: Final = 2**26
"""Bytes of rows that a worker holds before it writes them."""
PAUSE: Final = 0.5
"""Seconds between two signs of how far a shard is."""
ALL_CLASSES: Final = " (all classes)"
"""After the name of a model that is also read by all of its classes."""


@dataclass(frozen=True)
class PassPart:
    """Blocks of a pass that a shard computes. check: whose pass it is, empty for predictions. key: of its rows."""

    model: str
    check: str
    name: str
    blocks: tuple[int, ...]
    batch_size: int
    key: str

    @property
    def file(self) -> Path:
        return Path(self.model) / f"{self.name}.parquet"

    @property
    def about(self) -> dict[str, Any]:
        return {"pass": self.name, "blocks": list(self.blocks), "key": self.key}


@dataclass(frozen=True)
class ShardTask(LeasedTask):
    """What a worker needs to compute a shard."""

    parts: tuple[PassPart, ...]

    @property
    def digest(self) -> str:
        return _hash([[str(part.file), part.about] for part in self.parts])


@dataclass(frozen=True)
class ShardOutcome:
    """What came of a shard. failed: passes that are left to the audit, and why. short: models that want less memory."""

    state: Literal["done", "held"]
    failed: tuple[str, ...] = ()
    short: tuple[str, ...] = ()


@dataclass(frozen=True)
class ShardRows:
    """Gives the rows of a pass of one model that all shards together have computed; None where some are missing.

    bases: what rows depend on beside the pass, for predictions and for all others. Every row is written into its place
    in one tensor per column, so memory holds that and one group of rows of a file.
    """

    folder: Path
    model: str
    shards: int
    bases: tuple[Mapping[str, Any], Mapping[str, Any]]

    def key(self, subject: Subject, one: SamplePass) -> str:
        order = one.positions.cpu().contiguous().numpy().tobytes()
        own = {"pass": one.name, "size": one.size, "about": dict(one.about), "batch_size": subject.batch_size}
        own["positions"] = hashlib.sha256(order).hexdigest()
        return _hash([holdfast.__version__, dict(self.bases[one.name != PREDICTIONS]), own])

    def __call__(self, subject: Subject, one: SamplePass) -> dict[str, Tensor] | None:
        key, stage = self.key(subject, one), stage_of(one)
        found: dict[int, Path] = {}
        for shard in range(self.shards):
            path = self.folder / shard_name(stage, shard, self.shards) / self.model / f"{one.name}.parquet"
            about = rows_about(path)
            if about is not None and about.get("key") == key:
                found |= dict.fromkeys(about["blocks"], path)
        if not found or sorted(found) != list(range(one.blocks)):
            return None
        try:
            return _joined(one, found)
        except Exception:  # a damaged file, in whatever way; the rows are computed anew
            return None


def _joined(one: SamplePass, found: Mapping[int, Path]) -> dict[str, Tensor]:
    rows: dict[str, Tensor] = {}
    for path in dict.fromkeys(found.values()):
        own = [block for block in sorted(found) if found[block] == path]
        places = torch.cat([torch.arange(b * one.size, b * one.size + len(one.of(b))) for b in own])
        first = 0
        for ids, columns in read_rows(path):
            at = places[first : first + len(ids)]
            require(torch.equal(ids, one.positions[at]), f"{path} holds other samples than it says")
            for name, values in columns.items():
                if name not in rows:
                    rows[name] = values.new_empty(len(one.positions), *values.shape[1:])
                rows[name][at] = values
            first += len(ids)
        require(first == len(places), f"{path} holds {first} rows instead of {len(places)}")
    return rows


def stage_of(one: SamplePass) -> str:
    return PREDICTIONS if one.name == PREDICTIONS else "checks"


def shard_name(stage: str, shard: int, shards: int) -> str:
    """
    >>> shard_name("checks", 0, 4)
    'checks-1-of-4'
    """
    return f"{stage}-{shard + 1}-of-{shards}"


@dataclass(eq=False)
class Sent:
    """What all shards need: the subjects by name, and the checks with their settings. Networks travel on the CPU: the
    process that workers are forked from must not open a GPU."""

    subjects: Mapping[str, Subject]
    checks: Mapping[str, Any]
    _last: tuple[Any, Subject | None, dict[str, SamplePass]] = (None, None, {})

    def __getstate__(self) -> dict[str, Any]:
        return {"subjects": {k: _on_cpu(v) for k, v in self.subjects.items()}, "checks": self.checks}

    def sample_pass(self, part: PassPart) -> SamplePass:
        """The pass of a part, on the model's device and with the batch that memory holds.

        Passes of a check come one after the other and share what they made: images read, a surrogate trained.
        """
        wanted, of = (part.model, part.batch_size), (part.model, part.batch_size, part.check)
        last, subject, passes = self._last
        if subject is None or last[:2] != wanted:
            given = self.subjects[part.model]
            others = {k: module.to(given.device) for k, module in given.others.items()}
            model = given.model.to(given.device)
            subject = replace(given, model=model, others=others, batch_size=part.batch_size)
        if last != of:
            passes = {one.name: one for one in passes_of(subject, part.check, self.checks.get(part.check))}
        self._last = of, subject, passes
        return passes[part.name]


def _on_cpu(subject: Subject) -> Subject:
    def moved(module: nn.Module) -> nn.Module:
        return module if subject.device.type == "cpu" else copy.deepcopy(module).cpu()

    others = {k: moved(module) for k, module in subject.others.items()}
    return replace(subject, model=moved(subject.model), others=others, given=None)


def passes_of(subject: Subject, check: str, made: Any) -> list[SamplePass]:
    """The passes of a check, or predictions where it is empty; none of one that declares none, or cannot run at all."""
    if not check:
        return [subject.predictions_pass]
    try:
        return list(made.sample_passes(subject)) if hasattr(made, "sample_passes") else []
    except Exception:  # it fails again where the check runs, and is reported there
        return []


def compute_shard(task: ShardTask, sent: Sent, *, show: Tell = lambda text: None) -> ShardOutcome:
    """Compute a shard, or what is missing of it, unless another worker holds it."""
    began = time.process_time()
    try:
        with leased(task.out, task.name, seconds=task.lease, driver=task.driver, evict=task.evict) as lease:
            if lease is None:
                return ShardOutcome("held")
            if (done := finished(task)) is not None:
                return done
            lease.adopt()
            (lease.folder / DONE).unlink(missing_ok=True)
            failed: list[str] = []
            short: list[str] = []
            for part in task.parts:
                if rows_about(lease.folder / part.file) == part.about:
                    continue
                try:
                    _compute(sent, part, lease, show)
                except torch.OutOfMemoryError:
                    torch.cuda.empty_cache()
                    failed.append(f"{part.model}: {part.name}: out of memory")
                    short += [part.model] if not part.check else []
                except _PassFailed as error:
                    failed.append(f"{part.model}: {part.name}: {error}")
            lease.require()
            there = (part.file for part in task.parts if (lease.folder / part.file).exists())
            sizes = {str(path): (lease.folder / path).stat().st_size for path in there}
            lease.folder.mkdir(exist_ok=True)
            spent = round(time.process_time() - began, 3)
            said = {"digest": task.digest, "files": sizes, "failed": failed, "processor_seconds": spent}
            write_json(lease.folder / DONE, said)
            return ShardOutcome("done", tuple(failed), tuple(short))
    except LeaseLost:
        return ShardOutcome("held")


def finished(task: ShardTask) -> ShardOutcome | None:
    """What came of a shard that is done, with all of its files as they were."""
    try:
        said = json.loads((task.place / DONE).read_bytes())
        same = all((task.place / name).stat().st_size == size for name, size in said["files"].items())
        return ShardOutcome("done", tuple(said["failed"])) if same and said["digest"] == task.digest else None
    except (OSError, ValueError, LookupError, AttributeError):
        return None


class _PassFailed(Exception):
    """A pass raised; the audit will meet the same where its check runs."""


def _compute(sent: Sent, part: PassPart, lease: Lease, show: Tell) -> None:
    """The blocks of a part, written as they come."""
    pending: list[tuple[Tensor, dict[str, Tensor]]] = []
    last = 0.0
    with growing_rows(lease.folder / part.file, part.about) as write:

        def flush() -> None:
            ids = torch.cat([positions for positions, _ in pending])
            write(ids, {name: torch.cat([rows[name] for _, rows in pending]) for name in pending[0][1]})
            pending.clear()

        for done, (positions, rows) in enumerate(_blocks(sent, part)):
            lease.require()
            if time.monotonic() - last > PAUSE:
                last, text = time.monotonic(), f"{part.model}: {part.name} {done} of {len(part.blocks)} blocks"
                lease.tell(text)
                show(f"{part.model}: {part.name} {done} of {len(part.blocks)} blocks")
            pending.append((positions, rows))
            if sum(t.nbytes for _, own in pending for t in own.values()) > GROUP:
                flush()
        if pending:
            flush()


def _blocks(sent: Sent, part: PassPart) -> Iterator[tuple[Tensor, dict[str, Tensor]]]:
    """Positions and rows of each block, on the CPU; whatever a model's code raises is a failure of the pass alone."""
    try:
        one = sent.sample_pass(part)
        for block, rows in zip(part.blocks, one.compute(part.blocks), strict=True):
            plain = {name: values.detach().cpu() for name, values in rows.items()}
            require(all(values.ndim in (1, 2) for values in plain.values()), "its rows are neither numbers nor vectors")
            yield one.of(block), plain
    except (torch.OutOfMemoryError, LeaseLost):
        raise
    except Exception as error:
        own = isinstance(error, HoldfastError)
        raise _PassFailed(str(error) if own else f"{type(error).__name__}: {first_line(error)}") from error


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
            subjects = {k: replace(v, workers=math.ceil(v.workers / at_once)) for k, v in subjects.items()}
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


def _hash(values: Any) -> str:
    return hashlib.sha256(json.dumps(values, sort_keys=True, default=str).encode()).hexdigest()
