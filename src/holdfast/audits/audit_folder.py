"""The folder of an audit: claimed before anything is measured, written when all is."""

from __future__ import annotations

import platform
import time
from collections.abc import Sequence
from importlib import metadata
from pathlib import Path
from typing import Any, Final

import torch

import holdfast
from holdfast.audits.opening import Model
from holdfast.audits.request import Note, Plan
from holdfast.errors import HoldfastError
from holdfast.files import writable_folder, write_atomic
from holdfast.reports.findings_file import FindingsFile, read_findings
from holdfast.reports.html import write_report
from holdfast.reports.junit import junit
from holdfast.reports.markdown import markdown
from holdfast.reports.run_files import METRICS, read_metrics, read_runs

LIBRARIES: Final = ("torch", "torchvision", "numpy", "pillow", "timm", "onnxruntime")


def claim(out: Path, *, several: bool) -> None:
    """Refuse a folder that holds something else, and one that cannot be written to, before anything is measured."""
    writable_folder(out)
    if (out / "run.yaml").exists():
        raise HoldfastError(f"{out} holds a training run; choose another --out for the audit")
    if several and (out / "findings.json").exists():
        raise HoldfastError(f"{out} holds the audit of a single model; choose another --out for several")


def render(out: Path, folders: Sequence[Path]) -> tuple[FindingsFile, ...]:
    """Everything for people and pipelines, from the findings files alone."""
    files = tuple(read_findings(folder / "findings.json") for folder in folders)
    write_atomic(out / "summary.md", markdown(files).encode("utf-8"))
    write_atomic(out / "junit.xml", junit(files).encode("utf-8"))
    write_report(read_runs([out]), out / "report.html")
    return files


def keep_curves(model: Model, folder: Path, note: Note) -> None:
    """The training metrics of an audited run, beside its findings: the report draws them without the run.

    Those of another model that an earlier audit left go. A file that cannot be read costs the curves alone.
    """
    kept = folder / METRICS
    source = Path(model.model["spec"]) / METRICS
    if model.model["source"] == "run" and source.is_file():
        try:
            read_metrics(source)
            write_atomic(kept, source.read_bytes())
            return
        except HoldfastError as error:
            note(f"{model.name}: no training curves: {error}")
    kept.unlink(missing_ok=True)


def run_record(plan: Plan, device: torch.device, command: str) -> dict[str, Any]:
    """How to repeat the audit."""
    versions = {}
    for name in LIBRARIES:
        try:
            versions[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    gpu = {"gpu": torch.cuda.get_device_name(device)} if device.type == "cuda" else {}
    return {
        "command": command,
        "holdfast": holdfast.__version__,
        "python": platform.python_version(),
        **versions,
        "device": device.type,
        **gpu,
        "seed": plan.seed,
        "precision": plan.precision,
        "batch_size": plan.batch_size,
        "budget": plan.budget,
        "finished": time.strftime("%Y-%m-%dT%H:%M:%S%z"),
    }
