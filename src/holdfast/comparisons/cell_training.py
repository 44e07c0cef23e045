"""Cells of a comparison under way: how one is trained under its lease, and how many are brought to an end.

Open this file to change what happens when a worker dies, or when another command works in the same folder.
"""

from __future__ import annotations

import secrets
import time
from collections import Counter, deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

from holdfast.comparisons.executors import Crashed, Executor, WorkerDied
from holdfast.comparisons.leases import BEATS, SECONDS, LeasedProgress, LeaseLost, LeaseWatch, holder, leased
from holdfast.comparisons.single_run import run
from holdfast.data import Dataset
from holdfast.errors import HoldfastError, Interrupted, require
from holdfast.reports.run_files import FINDINGS
from holdfast.settings import TrainSettings
from holdfast.train.folder import RunFolder
from holdfast.train.meters import Diverged
from holdfast.train.progress import Progress

POLL = 0.25
"""Seconds to wait for a worker's answer at a time."""
LOOK = 1.0
"""Seconds between two looks at the leases."""
MOST_DEATHS = 3
"""Workers that may die at one cell before it is given up."""


@dataclass(frozen=True)
class CellTask:
    """What a worker needs to train a cell. label: what tells it from the others. evict: of ``leased``."""

    name: str
    out: Path
    settings: TrainSettings
    label: str = ""
    overwrite: bool = False
    lease: float = SECONDS
    driver: str = ""
    evict: str = ""

    @property
    def place(self) -> Path:
        return self.out / self.name


@dataclass(frozen=True)
class CellOutcome:
    """What came of a cell: trained, diverged (error says how), or left to the worker that holds it."""

    state: Literal["done", "diverged", "held"]
    error: str = ""
    notes: tuple[str, ...] = ()


def is_finished(folder: Path) -> bool:
    """Whether a run is trained and measured."""
    return (folder / FINDINGS).exists() and (folder / "model.json").exists()


def train_cell(task: CellTask, data: dict[Any, Dataset] | None, *, progress: Progress | None = None) -> CellOutcome:
    """Train a cell, or continue it, unless it is finished or another worker holds it. data: in memory, by settings."""
    where = {"seconds": task.lease, "driver": task.driver, "evict": task.evict}
    try:
        with leased(task.out, task.name, **where) as lease:  # type: ignore[arg-type]
            if lease is None:
                return CellOutcome("held")
            if not task.overwrite and is_finished(task.place):
                return CellOutcome("done")
            lease.adopt()
            shown = LeasedProgress(lease, progress)
            own = None if data is None else data[task.settings.data]
            how = {"resume": not task.overwrite, "overwrite": task.overwrite}
            try:
                run(task.settings, lease.folder, data=own, progress=shown, **how)
            except Diverged as error:
                lease.require()
                if task.overwrite:  # a run that was to be replaced is not part of this comparison
                    RunFolder(lease.folder).clear()
                return CellOutcome("diverged", _at(task, lease.folder, error), tuple(shown.notes))
            except LeaseLost:
                raise
            except HoldfastError as error:
                lease.require()  # without its folder everything fails
                raise type(error)(_at(task, lease.folder, error)) from error
            except Interrupted as ended:
                ended.remedy = ended.remedy.replace(str(lease.folder), str(task.place))
                raise
    except LeaseLost:
        return CellOutcome("held")
    return CellOutcome("done", notes=tuple(shown.notes))


def _at(task: CellTask, folder: Path, error: Exception) -> str:
    """What an error says, with the folder where the run lies afterwards."""
    return str(error).replace(str(folder), str(task.place))


def train_cells(
    tasks: Sequence[CellTask],
    executor: Executor,
    *,
    call: Callable[[CellTask, Any], CellOutcome] = train_cell,
    data: dict[Any, Dataset] | None = None,
    lease: float = SECONDS,
    show: Callable[[Mapping[str, str], Sequence[str]], None] = lambda running, held: None,
) -> Iterator[tuple[CellTask, CellOutcome]]:
    """Every task with what came of it, as they end.

    A worker that dies is replaced, and its cell continued. Cells that other commands hold are waited for, and taken
    over should those die. show: told about once a second what is running, with how far it is, and what others hold.
    """
    require(lease > 0, f"lease must be > 0 seconds, got {lease}")
    driver, deaths = secrets.token_hex(8), Counter[str]()
    todo = deque(replace(task, lease=lease, driver=driver) for task in tasks)
    running: dict[str, CellTask] = {}
    held: dict[str, CellTask] = {}
    watch, looked = LeaseWatch(seconds=lease), 0.0
    with executor.begin(call, data):
        while todo or running or held:
            while todo and executor.free:
                task = todo.popleft()
                running[task.name] = task
                executor.submit(task.name, task)
            for name, outcome in executor.wait(POLL):
                task = running.pop(name)
                if isinstance(outcome, WorkerDied):
                    deaths[name] += 1
                    lost = f"{name} was given up after {MOST_DEATHS} workers died at it: {outcome.why}"
                    require(deaths[name] < MOST_DEATHS, f"{lost}; the same command continues")
                    todo.appendleft(replace(task, evict=_held_for(driver, task)))
                elif isinstance(outcome, Crashed):
                    raise _as_error(name, outcome)
                elif outcome.state == "held":
                    held[name] = replace(task, evict="")
                else:
                    yield task, outcome
            if time.monotonic() - looked < min(LOOK, lease / BEATS):
                continue
            looked = time.monotonic()
            for name, task in list(held.items()):
                dead = watch.dead(task.out, name)
                if is_finished(task.place) and not task.overwrite:
                    del held[name]
                    yield task, CellOutcome("done")
                elif dead is not None or watch.last[name] is None:
                    todo.append(replace(held.pop(name), evict="" if dead is None else dead.token))
            for name, task in running.items():
                dead = watch.dead(task.out, name)
                if dead is not None and dead.who.get("driver") == driver and dead.token != task.evict:
                    executor.kill(name)  # it hangs, or is stopped; handed back as a worker that died
            show({name: found.status if (found := watch.last[name]) else "" for name in running}, list(held))


def _held_for(driver: str, task: CellTask) -> str:
    """The token under which a worker of ours held a cell; empty where it is another's by now."""
    found = holder(task.out, task.name)
    return found.token if found is not None and found.who.get("driver") == driver else ""


def _as_error(name: str, crash: Crashed) -> Exception:
    if isinstance(crash.error, HoldfastError):
        return crash.error
    return RuntimeError(f"{name} crashed in another process:\n{crash.trace}")
