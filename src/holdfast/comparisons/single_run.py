"""One run: trained, audited and reported, as the command line does it; as a cell of a comparison, under its lease;
and its score on the validation split, which is what a choice among trainings may look at, never the test set.

Open this file to change what a worker does with a cell; leased_tasks.py has what happens when it dies.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from holdfast.audits.run_audit import audit
from holdfast.data import Dataset
from holdfast.data.loaders import make_loader
from holdfast.devices import resolve_device
from holdfast.errors import HoldfastError, Interrupted, require
from holdfast.executors import Executor
from holdfast.executors.leased_tasks import LeasedTask, run_tasks
from holdfast.executors.leases import SECONDS, LeasedProgress, LeaseLost, leased
from holdfast.models.saved_model import load_model
from holdfast.reports import RunFiles, write_findings, write_report
from holdfast.reports.run_files import FINDINGS
from holdfast.settings import TrainSettings
from holdfast.settings.training import CellRule
from holdfast.trackers import Tracking
from holdfast.train import train
from holdfast.train.distributed import continued, joined
from holdfast.train.evaluate import predict, selection_score
from holdfast.train.folder import RunFolder, claim, recorded
from holdfast.train.progress import Progress
from holdfast.train.step_parts import Diverged

CHECKS_OF_A_RUN = ("accuracy", "groups")
"""What every training is measured on at its end; an audit looks at the rest."""


def run_together(
    settings: TrainSettings,
    out: str | Path,
    *,
    resume: bool = False,
    overwrite: bool = False,
    progress: Progress | None = None,
) -> RunFiles | None:
    """``run`` by all ranks that torchrun started; the first one writes, and gives the files."""
    with joined(settings.loop.device) as ranks:
        if ranks is None or ranks.first:
            resume, overwrite = continued(ranks, resume=resume, overwrite=overwrite)
            return run(settings, out, resume=resume, overwrite=overwrite, progress=progress)
        train(settings)
        return None


def run(
    settings: TrainSettings,
    out: str | Path,
    *,
    data: Dataset | None = None,
    resume: bool = False,
    overwrite: bool = False,
    progress: Progress | None = None,
) -> RunFiles:
    """Fill a run folder: weights, metrics, findings on the test set, and the report.

    data: ready-made; by default what the settings name.
    """
    tracking = Tracking.of(settings.loop, note=(progress or Progress()).note)  # refuses what is not installed
    own = claim(out, resume=resume, overwrite=overwrite, data=settings.data.name)
    with own as folder, tracking:
        result = train(settings, data=data, out=folder, progress=progress, tracking=tracking)
        data, loop = result.data, result.settings.loop
        if data.test is not None:
            chosen_on = {"epoch_chosen_on": "test"} if loop.select == "oracle-test" else {}
            # not in the precision of the training: this is what an audit of the run would measure
            same = {name: getattr(loop, name) for name in ("device", "batch_size", "seed")}
            same["workers"] = result.settings.data.workers
            bar = False if progress is not None and progress.silent else None  # a worker has no terminal of its own
            measured = audit(result, checks=CHECKS_OF_A_RUN, progress=bar, **same)
            tracking.results({f.name: f.value for f in measured.findings if f.value is not None and not f.where})
            of = {"name": data.name, "split": "test", "n": len(data.test), "classes": list(data.classes)}
            of |= {"group_attribute": data.group_attribute}
            write_findings(
                folder.path / "findings.json",
                measured.findings,
                model={"name": settings.model.name, "run": folder.path.name} | chosen_on,
                data={**of, "warnings": [str(note) for note in measured.warnings]},
            )
        files = RunFiles.read(folder.path)
        write_report([files], folder.path / "report.html")
    return files


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
    """Every cell with what came of it, as they end; lease, show: as in ``run_tasks``."""

    def finished(task: CellTask) -> CellOutcome | None:
        return CellOutcome("done") if is_finished(task.place) and not task.overwrite else None

    with executor.begin(call, data):
        yield from run_tasks(tasks, executor, finished=finished, lease=lease, show=show)


def require_groups(rule: CellRule, data: Dataset) -> None:
    """Refuse a rule that looks at groups where the validation split has none."""
    grouped = data.val is None or bool((data.val.groups >= 0).any())
    require(
        rule != "val-worst-group" or grouped,
        f"choose val-worst-group needs groups in the validation set, and {data.name} has none there; use "
        "val-worst-class, or data with groups",
    )


def held_out_score(folder: Path, settings: TrainSettings, data: Dataset, rule: CellRule) -> float:
    """What a rule says of the model that a run kept, on the validation split."""
    assert data.val is not None
    loop = recorded(folder, settings).loop
    device = resolve_device(loop.device)
    loader = make_loader(
        data.val, batch_size=loop.batch_size, device=device, kind=settings.data.loader, workers=settings.data.workers
    )
    model = load_model(folder)[0].to(device)
    return selection_score(rule, predict(model, data.val, loader, device=device, precision=loop.precision))
