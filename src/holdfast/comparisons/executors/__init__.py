"""Where many trainings run: in this process, in local processes or on a Ray cluster.

An executor calls one function on many arguments, several at once, and hands back what came of each, in the order in
which they end. It knows nothing of trainings: what a worker did before it died is for leases to sort out.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, Self

from holdfast.settings.engine_settings import EngineSettings

PER_GPU = 2
"""Trainings at once on a GPU where ``auto`` decides."""


@dataclass(frozen=True)
class WorkerDied:
    """What comes of a call whose worker has ended without an answer. why: how, in words."""

    why: str


@dataclass(frozen=True)
class Crashed:
    """What comes of a call that raised. trace: where, as text, for what was not meant for the user."""

    error: BaseException
    trace: str


Call = Callable[[Any, Any], Any]
"""Of an argument and what all calls share; both are sent to other processes, and so is the result."""


class Executor(Protocol):
    """Calls a function on arguments. Used as a context: at its end workers are gone, in good order or not."""

    def begin(self, call: Call, shared: Any) -> Self:
        """What to call. shared: its second argument, sent to a worker once."""

    @property
    def free(self) -> bool:
        """Whether another call can be taken now."""

    def submit(self, key: str, argument: Any) -> None: ...

    def wait(self, seconds: float) -> list[tuple[str, Any]]:
        """Calls that have ended, as (key, result, WorkerDied or Crashed); waits that long for one."""

    def kill(self, key: str) -> None:
        """End a call whose worker does not answer; it is handed back as WorkerDied."""

    def __enter__(self) -> Self: ...

    def __exit__(self, *error: object) -> None: ...


def usable_cores() -> int:
    """Processors that this process may use: those it is bound to, and no more than its container has a share of."""
    bound = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    try:
        quota, period = Path("/sys/fs/cgroup/cpu.max").read_text().split()
        return max(1, min(bound, round(int(quota) / int(period))))
    except (OSError, ValueError):  # no container, or "max": no limit
        return bound


def make_executor(settings: EngineSettings, *, device: str = "auto", calls: int = 1) -> Executor:
    """The executor that settings ask for. calls: how many there will be, at most.

    On Ray, as many run at once as the cluster has room for, unless ``parallel`` is a number.
    """
    wanted, threads = settings.parallel, settings.threads or 1
    if settings.engine == "ray":
        from holdfast.comparisons.executors.ray_cluster import RayCluster

        most = int(wanted) if wanted and wanted != "auto" else None
        return RayCluster(settings.address, most=most, device=device, threads=threads)
    from holdfast.comparisons.executors.local_processes import LocalProcesses, gpus_for
    from holdfast.comparisons.executors.this_process import ThisProcess

    if wanted is None:
        return ThisProcess(threads=settings.threads)
    gpus = gpus_for(device)
    fit = len(gpus) * PER_GPU if gpus else max(1, usable_cores() // threads)
    workers = min(fit if wanted == "auto" else int(wanted), max(1, calls))
    if workers == 1:
        return ThisProcess(threads=settings.threads if gpus else threads)
    return LocalProcesses(workers, threads=threads, gpus=gpus)
