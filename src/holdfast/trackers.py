"""Where trainings and audits are recorded beside their folders: TensorBoard, MLflow, Weights & Biases. Open this
file to write a tracker.

A tracker is a class with ``@tracker`` on top (holdfast.parts) and the three functions of :class:`Tracker`;
:class:`Tracking` calls those of every tracker that ``--track`` names. A package is imported when its tracker starts.
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Final, Literal, Protocol

from holdfast.errors import HoldfastError, explaining, first_line, require
from holdfast.files import exists, write_atomic
from holdfast.parts import TRACKERS, tracker
from holdfast.printable import one_line
from holdfast.settings import LoopSettings

IDS: Final = "trackers.json"
"""In a run folder: under which id each tracker has the run, so that a resumed training continues there."""
ARTIFACTS: Final = ("run.yaml", "metrics.jsonl", "findings.json", "report.html")
"""Files of a run folder that trackers get when a training ends; weights are not among them."""
AUDIT_ARTIFACTS: Final = ("findings.json", "report.html", "summary.md", "junit.xml")
"""The same of an audit."""
PROJECT: Final = "holdfast"

Status = Literal["finished", "failed", "stopped"]


@dataclass(frozen=True)
class TrackedRun:
    """What a tracker is told of a training or an audit.

    name: the folder's, or what is trained or audited. settings: flat and plain. folder: where files are, if anywhere.
    project: what to file it under, None for the tracker's own choice. known: its id, where the tracker has had it
    before. step: the last one that is done, None where it starts from nothing.
    """

    name: str
    settings: Mapping[str, Any]
    folder: Path | None = None
    project: str | None = None
    known: str | None = None
    step: int | None = None


class Tracker(Protocol):
    """What a tracker does. It may raise whatever its package raises."""

    def start(self, run: TrackedRun) -> str:
        """Begin or continue a run; returns its id there."""

    def log(self, values: Mapping[str, float], step: int) -> None:
        """The numbers of an epoch, by ``STAGE/NAME``."""

    def finish(self, results: Mapping[str, float], files: Sequence[Path], status: Status) -> None:
        """What was measured at the end, and the files to keep with the run."""


class Tracking(AbstractContextManager["Tracking"]):
    """One training or audit in all of its trackers; none of them by default.

    A tracker that cannot start is an error before the first step. One that fails later, such as a server that is
    gone, costs its own later numbers alone: the training continues, and ``note`` says so. artifacts: files below the
    folder to keep with it, where they are there. what: it is, for messages.
    """

    def __init__(
        self,
        names: Sequence[str] = (),
        *,
        project: str | None = None,
        note: Callable[[str], None] = lambda text: None,
        artifacts: Sequence[str] = ARTIFACTS,
        what: str = "training",
    ) -> None:
        for part in (TRACKERS[name] for name in names):
            found = find_spec(part.package) is not None
            require(found, f"--track {part.name} needs a package; run: pip install 'holdfast[{part.extra}]'")
        self.names, self.project, self.note = tuple(dict.fromkeys(names)), project, note
        self.artifacts, self.what = tuple(artifacts), what
        self.folder: Path | None = None
        self.values: dict[str, float] = {}
        self._live: dict[str, Tracker] = {}

    @classmethod
    def of(cls, loop: LoopSettings, *, note: Callable[[str], None] = lambda text: None) -> Tracking:
        """What the settings of a training ask for."""
        return cls(loop.track, project=loop.track_project, note=note)

    def begin(self, settings: Mapping[str, Any], *, folder: Path | None = None, step: int | None = None) -> None:
        """Start every tracker. settings: flat; data, model and method of them are the name where there is no folder.
        step: the last one that a resumed training has done."""
        self.folder = folder
        ids = _read_ids(folder) if step is not None else {}
        name = "-".join(str(_named(settings[key])) for key in ("data", "model", "method") if key in settings)
        plain = {key: one for key, value in settings.items() for key, one in _dotted(key, value)}
        for own in self.names:
            part = TRACKERS[own]
            require(folder is not None or not part.needs_folder, f"--track {own} needs a folder; give --out")
            run = TrackedRun(folder.name if folder else name, plain, folder, self.project, ids.get(own), step)
            made: Tracker = part.made()
            with explaining(f"cannot start {own}", f"{part.remedy or 'fix that'}, or leave it out of --track"):
                ids[own] = made.start(run)
            self._live[own] = made
        if self.names and folder is not None:
            write_atomic(folder / IDS, (json.dumps(ids, indent=2) + "\n").encode())

    def epoch(self, record: Mapping[str, Any]) -> None:
        """The numbers of a line of metrics.jsonl."""
        numbers = {f"{record['stage']}/{key}": value for key, value in record.items() if isinstance(value, float)}
        self._each(lambda own: own.log(numbers, record["step"]))

    def results(self, values: Mapping[str, float]) -> None:
        """What was measured after the training, by the names of the measures."""
        self.values |= {name: value for name, value in values.items() if math.isfinite(value)}

    def __exit__(self, kind: type[BaseException] | None, *rest: object) -> None:
        status: Status = "finished"
        if kind is not None:
            status = "failed" if issubclass(kind, Exception) else "stopped"
        paths = [self.folder / name for name in self.artifacts] if self.folder is not None else []
        files = [path for path in paths if path.is_file()]
        self._each(lambda own: own.finish(self.values, files, status))
        self._live.clear()

    def _each(self, call: Callable[[Tracker], None]) -> None:
        for name, own in [*self._live.items()]:
            try:
                call(own)
            except Exception as error:  # whatever its package raises must not end a training
                del self._live[name]
                self.note(f"warning: {name} failed and gets nothing more of this {self.what}: {first_line(error)}")


def _read_ids(folder: Path | None) -> dict[str, str]:
    if folder is None or not exists(folder / IDS):
        return {}
    try:
        found = json.loads((folder / IDS).read_text(encoding="utf-8"))
        return {str(name): str(own) for name, own in found.items()}
    except (OSError, ValueError, AttributeError) as error:
        raise HoldfastError(f"cannot read {folder / IDS}: {error}; remove it to track this run anew") from error


def _named(value: Any) -> Any:
    return value.get("name") if isinstance(value, Mapping) else value


def _dotted(key: str, value: Any) -> list[tuple[str, Any]]:
    """Settings of a method or ascent under names of their own.

    >>> _dotted("method", {"name": "lff", "q": 0.7})
    [('method', 'lff'), ('method.q', 0.7)]
    """
    if not isinstance(value, Mapping):
        return [(key, value)]
    return [(key if name == "name" else f"{key}.{name}", own) for name, own in value.items()]


@tracker(
    "tensorboard",
    about="TensorBoard events in the run folder.",
    package="tensorboard",
    extra="tensorboard",
    needs_folder=True,
    order=1,
)
class TensorBoardTracker:
    """Findings and report are in the same folder; the results of the end are scalars too."""

    def start(self, run: TrackedRun) -> str:
        from torch.utils.tensorboard import SummaryWriter

        assert run.folder is not None
        self.step = run.step or 0
        # events after the checkpoint that a training resumes from are not part of it
        self.writer: Any = SummaryWriter(
            str(run.folder / "tensorboard"), purge_step=None if run.step is None else run.step + 1
        )
        rows = "\n".join(f"| {key} | {one_line(str(value))} |" for key, value in run.settings.items())
        self.writer.add_text("settings", f"| setting | value |\n|---|---|\n{rows}", self.step)
        return run.name

    def log(self, values: Mapping[str, float], step: int) -> None:
        self.step = step
        for key, value in values.items():
            self.writer.add_scalar(key, value, step)
        self.writer.flush()

    def finish(self, results: Mapping[str, float], files: Sequence[Path], status: Status) -> None:
        for name, value in results.items():
            self.writer.add_scalar(f"results/{name}", value, self.step)
        for path in (path for path in files if path.name == "report.html"):
            self.writer.add_text("report", one_line(str(path)), self.step)
        self.writer.close()


@tracker(
    "mlflow",
    about="An MLflow server or store: MLFLOW_TRACKING_URI says which, MLFLOW_EXPERIMENT_NAME the experiment.",
    package="mlflow",
    extra="mlflow",
    remedy="set MLFLOW_TRACKING_URI to a server or store that can be used",
    order=2,
)
class MlflowTracker:
    """A run that is active in the calling program is used and left open; else there is one per training."""

    MOST: Final = 100
    """Params that a server takes at a time."""
    ENDED: Final = {"finished": "FINISHED", "failed": "FAILED", "stopped": "KILLED"}

    def start(self, run: TrackedRun) -> str:
        import mlflow

        self.client: Any = mlflow.MlflowClient()
        active = mlflow.active_run()
        self.own = active is None
        if active is not None:
            self.id: str = active.info.run_id
        elif run.known is not None:
            self.id = run.known
            self.client.update_run(self.id, status="RUNNING")
            return self.id  # its params are there, and cannot be given twice
        else:
            experiment = run.project or os.environ.get("MLFLOW_EXPERIMENT_NAME") or PROJECT
            found = self.client.get_experiment_by_name(experiment)
            place = found.experiment_id if found is not None else self.client.create_experiment(experiment)
            self.id = self.client.create_run(place, run_name=run.name).info.run_id
        params = [mlflow.entities.Param(key, str(value)) for key, value in run.settings.items()]
        for first in range(0, len(params), self.MOST):
            self.client.log_batch(self.id, params=params[first : first + self.MOST])
        return self.id

    def log(self, values: Mapping[str, float], step: int) -> None:
        import time

        from mlflow.entities import Metric

        now = int(time.time() * 1000)
        self.client.log_batch(self.id, metrics=[Metric(key, value, now, step) for key, value in values.items()])

    def finish(self, results: Mapping[str, float], files: Sequence[Path], status: Status) -> None:
        for name, value in results.items():
            self.client.log_metric(self.id, name, value)
        for path in files:
            self.client.log_artifact(self.id, str(path))
        if self.own:
            self.client.set_terminated(self.id, status=self.ENDED[status])


@tracker(
    "wandb",
    about="Weights & Biases: WANDB_PROJECT, WANDB_MODE=offline and the other variables of its own are followed.",
    package="wandb",
    extra="wandb",
    remedy="log in with 'wandb login', or set WANDB_MODE=offline",
    order=3,
)
class WandbTracker:
    """A run that is active in the calling program is used and left open; else there is one per training."""

    def start(self, run: TrackedRun) -> str:
        import wandb

        self.own = wandb.run is None
        if self.own:
            project = run.project or os.environ.get("WANDB_PROJECT") or PROJECT
            again: dict[str, Any] = {"id": run.known, "resume": "allow"} if run.known else {}
            self.run: Any = wandb.init(project=project, name=run.name, config=dict(run.settings), **again)
        else:
            self.run = wandb.run
            self.run.config.update(dict(run.settings), allow_val_change=True)
        return str(self.run.id)

    def log(self, values: Mapping[str, float], step: int) -> None:
        self.run.log(dict(values), step=step if self.own else None)  # a run of others counts steps of its own

    def finish(self, results: Mapping[str, float], files: Sequence[Path], status: Status) -> None:
        import wandb

        self.run.summary.update(dict(results))
        if files:
            kept = wandb.Artifact(f"holdfast-{self.run.id}", type="run")
            for path in files:
                kept.add_file(str(path), name=path.name)
            self.run.log_artifact(kept)
        if self.own:
            self.run.finish(exit_code=0 if status == "finished" else 1)
