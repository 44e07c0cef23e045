"""One run as the command line does it: train, audit, report."""

from __future__ import annotations

from pathlib import Path

from holdfast.audits.run_audit import audit
from holdfast.data import Dataset
from holdfast.reports import RunFiles, write_findings, write_report
from holdfast.settings import TrainSettings
from holdfast.trackers import Tracking
from holdfast.train import train
from holdfast.train.distributed import continued, joined
from holdfast.train.folder import claim
from holdfast.train.progress import Progress

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
    with claim(out, resume=resume, overwrite=overwrite) as folder, tracking:
        result = train(settings, data=data, out=folder, progress=progress, tracking=tracking)
        data, loop = result.data, result.settings.loop
        if data.test is not None:
            chosen_on = {"epoch_chosen_on": "test"} if loop.select == "oracle-test" else {}
            # not in the precision of the training: this is what an audit of the run would measure
            same = {name: getattr(loop, name) for name in ("device", "batch_size", "seed")}
            bar = False if progress is not None and progress.silent else None  # a worker has no terminal of its own
            measured = audit(result, checks=CHECKS_OF_A_RUN, progress=bar, **same)
            tracking.results({f.name: f.value for f in measured.findings if f.value is not None and not f.where})
            of = {"name": data.name, "split": "test", "n": len(data.test), "classes": list(data.classes)}
            write_findings(
                folder.path / "findings.json",
                measured.findings,
                model={"name": settings.model.name, "run": folder.path.name} | chosen_on,
                data={**of, "warnings": [str(note) for note in measured.warnings]},
            )
        files = RunFiles.read(folder.path)
        write_report([files], folder.path / "report.html")
    return files
