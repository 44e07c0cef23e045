"""Cells of a comparison under way: how one is trained, or continued, under its lease.

Open this file to change what a worker does with a cell; leased_tasks.py has what happens when it dies.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from holdfast.comparisons.single_run import run
from holdfast.data import Dataset
from holdfast.errors import HoldfastError, Interrupted
from holdfast.executors import Executor
from holdfast.executors.leased_tasks import LeasedTask, run_tasks
from holdfast.executors.leases import SECONDS, LeasedProgress, LeaseLost, leased
from holdfast.reports.run_files import FINDINGS
from holdfast.settings import TrainSettings
from holdfast.train.folder import RunFolder
from holdfast.train.meters import Diverged
from holdfast.train.progress import Progress


@dataclass(frozen=True)
class CellTask(LeasedTask):
    """What a worker needs to train a cell. label: what tells it from the others."""

    settings: TrainSettings
    label: str = ""
    overwrite: bool = False


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
    """Every cell with what came of it, as they end; lease, show: as of ``run_tasks``."""

    def finished(task: CellTask) -> CellOutcome | None:
        return CellOutcome("done") if is_finished(task.place) and not task.overwrite else None

    with executor.begin(call, data):
        yield from run_tasks(tasks, executor, finished=finished, lease=lease, show=show)
