"""What a worker does with a shard of an audit: its parts of passes, computed under a lease and written as they come.

Open this file to change what a shard is, or how it is redone. leased_tasks.py has what happens when a worker dies.
"""

from __future__ import annotations

import copy
import json
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final, Literal

import torch
from torch import Tensor, nn

from holdfast.audits.audit_data import Tell
from holdfast.audits.sample_passes import SamplePass
from holdfast.audits.shard_rows import growing_rows, hash_of, rows_about
from holdfast.audits.subject import Subject
from holdfast.errors import HoldfastError, first_line, raise_interruption, require
from holdfast.executors.leased_tasks import LeasedTask
from holdfast.executors.leases import Lease, LeaseLost, leased
from holdfast.reports.findings_file import write_json

DONE: Final = "shard.json"
"""What a shard has computed, written when it has computed all."""
GROUP: Final = 2**26
"""Bytes of rows that a worker holds before it writes them."""
PAUSE: Final = 0.5
"""Seconds between two signs of how far a shard is."""


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
        return hash_of([[str(part.file), part.about] for part in self.parts])


@dataclass(frozen=True)
class ShardOutcome:
    """What came of a shard. failed: passes that are left to the audit, and why. short: models that want less memory."""

    state: Literal["done", "held"]
    failed: tuple[str, ...] = ()
    short: tuple[str, ...] = ()


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
    except Exception as error:  # it fails again where the check runs, and is reported there
        raise_interruption(error)
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
                show(text)
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
        raise_interruption(error)
        own = isinstance(error, HoldfastError)
        raise _PassFailed(str(error) if own else f"{type(error).__name__}: {first_line(error)}") from error
