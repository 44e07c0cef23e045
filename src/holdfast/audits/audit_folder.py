"""What an audit writes: a folder that is claimed before anything is measured and filled when all is.

Open this file to change the table of samples, what is left out on demand (pictures, folders), or the record of a run.
"""

from __future__ import annotations

import os
import platform
import re
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from importlib import metadata
from pathlib import Path
from typing import Any, Final

import torch

import holdfast
from holdfast.audits.audit_data import Tell
from holdfast.audits.open_models import AuditedModel
from holdfast.audits.sample_passes import RIGHT, WRONG, decode
from holdfast.audits.subject import Subject
from holdfast.data.result_folders import refuse_foreign
from holdfast.data.tables import require_writable, write_table
from holdfast.data.usable_data import UNREADABLE_CSV, write_unreadable
from holdfast.errors import HoldfastError, require, require_known
from holdfast.files import writable_folder, write_atomic
from holdfast.reports.findings_file import AGAINST, PAIRED, FindingsFile, read_findings, write_findings
from holdfast.reports.html import write_report
from holdfast.reports.renderings import junit, markdown
from holdfast.reports.run_files import HIDDEN, METRICS, hide_folders, read_metrics, read_runs
from holdfast.settings.audit_settings import AuditSettings
from holdfast.types import Finding

LIBRARIES: Final = ("torch", "torchvision", "numpy", "pillow", "timm", "onnxruntime")


OWN: Final = ("junit.xml", "checks/*.json*", "*/checks/*.json*", "shards", "tensorboard", "trackers.json")
"""What tells the folder of an audit, also of one that was interrupted."""


def claim(out: Path, *, several: bool, data: object = None) -> None:
    """Refuse a folder that holds something else, and one that cannot be written to, before anything is measured."""
    writable_folder(out)
    require(not (out / "run.yaml").exists(), f"{out} holds a training run; choose another --out for the audit")
    single = several and (out / "findings.json").exists()
    require(not single, f"{out} holds the audit of a single model; choose another --out for several")
    refuse_foreign(out, OWN, data=data)


def write_audit(
    out: Path,
    files: Sequence[FindingsFile],
    models: Sequence[AuditedModel],
    folders: Sequence[Path],
    request: AuditSettings,
    tell: Tell,
) -> tuple[FindingsFile, ...]:
    """The folder of each model, then everything for people and pipelines, from the findings files as they are read back
    alone."""
    for file, model, folder in zip(files, models, folders, strict=True):
        own = {name: getattr(file, name) for name in ("model", "data", "run", "checks", "gates")}
        write_findings(folder / "findings.json", file.findings, **own, measures={AGAINST: PAIRED})
        keep_curves(model, folder, tell)
        (folder / UNREADABLE_CSV).unlink(missing_ok=True)
        write_unreadable(folder, model.unreadable, redacted=request.redact_paths)
        write_samples(folder, sample_columns(model, file.findings, redacted=request.redact_paths), request.samples)
    written = tuple(read_findings(folder / "findings.json") for folder in folders)
    write_atomic(out / "summary.md", markdown(written).encode("utf-8"))
    write_atomic(out / "junit.xml", junit(written).encode("utf-8"))
    write_report(read_runs([out]), out / "report.html")
    return written


def keep_curves(model: AuditedModel, folder: Path, tell: Tell) -> None:
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
            tell(f"{model.name}: no training curves: {error}")
    kept.unlink(missing_ok=True)


def run_record(request: AuditSettings, device: torch.device, command: str) -> dict[str, Any]:
    """How to repeat the audit."""
    versions = {}
    for name in LIBRARIES:
        with suppress(metadata.PackageNotFoundError):
            versions[name] = metadata.version(name)

    return {
        "command": command,
        "holdfast": holdfast.__version__,
        "python": platform.python_version(),
        **versions,
        "device": device.type,
        **({"gpu": torch.cuda.get_device_name(device)} if device.type == "cuda" else {}),
        **{name: getattr(request, name) for name in ("seed", "precision", "batch_size", "budget")},
        "finished": time.strftime("%Y-%m-%dT%H:%M:%S%z"),
    }


SAMPLE_KINDS: Final = ("csv", "parquet")
FIRST: Final = ("id", "path", "label", "prediction", "confidence", "group")


def sample_columns(
    model: AuditedModel, findings: Sequence[Finding], *, redacted: bool
) -> dict[str, list[str | int | float | None]]:
    """Columns of samples.csv: what the model says of each test image, and the verdict of each check that has one."""
    seen, data, split = model.subject.predictions, model.subject.data, model.subject.split
    confidence, prediction = seen.logits.softmax(1).max(1)
    names = dict(enumerate(data.group_names))
    columns: dict[str, list[Any]] = {
        "id": list(range(len(split))),
        "path": [HIDDEN] * len(split) if redacted else model.ids(),
        "label": [data.classes[i] for i in seen.labels],
        "prediction": [data.classes[i] for i in prediction],
        "confidence": confidence.tolist() if model.subject.has_scores else [None] * len(split),
        "group": [names.get(g) for g in seen.groups.tolist()],
    }
    columns |= {f"group {name}": [word or None for word in words] for name, words in model.words.test.items()}
    return columns | verdicts(model.subject, findings)


def check_kind(kind: str) -> None:
    """Refuse a table that could not be written, before anything is measured."""
    require_known("kind of samples", kind, SAMPLE_KINDS)
    require_writable(f".{kind}")


def write_samples(folder: Path, columns: Mapping[str, Sequence[str | int | float | None]], kind: str) -> None:
    """``samples.csv`` or ``samples.parquet``, whole or not at all; what an earlier audit left of the other goes."""
    missing = [name for name in FIRST if name not in columns]
    require(not missing, f"a table of samples needs the columns {', '.join(missing)}")
    ordered = {name: columns[name] for name in FIRST} | dict(columns)
    write_table(folder / f"samples.{kind}", ordered, types={"id": int, "confidence": float})
    for other in {*SAMPLE_KINDS} - {kind}:
        (folder / f"samples.{other}").unlink(missing_ok=True)


def verdicts(subject: Subject, findings: Sequence[Finding]) -> dict[str, list[str | None]]:
    """One column a check that speaks of single images; None where it says nothing of one.

    accuracy: right or wrong. Any other check leaves words in its evidence, see :mod:`holdfast.audits.sample_passes`.
    """
    made: dict[str, list[str | None]] = {
        "accuracy": [RIGHT if right else WRONG for right in subject.predictions.correct.tolist()]
    }
    for f in findings:
        given = f.evidence.get("verdicts")
        if isinstance(given, Mapping):
            column = made.setdefault(f.check, [None] * len(subject.split))
            for position, word in decode(given):
                column[position] = "; ".join(filter(None, (column[position], word)))
    return made


PNG: Final = "iVBORw0KGgo"
"""How a PNG file begins in base64."""


def without_pictures(found: Finding) -> Finding:
    """A finding whose evidence has no picture left; what stood beside one in a list goes with it."""
    return replace(found, evidence=_bare(found.evidence))


def _bare(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {k: _bare(v) for k, v in value.items() if not _is_picture(v)}
    if isinstance(value, (list, tuple)):
        return [_bare(item) for item in value if not _is_picture(item) and not _shows(item)]
    return value


def _is_picture(value: Any) -> bool:
    return isinstance(value, str) and value.startswith(PNG)


def _shows(value: Any) -> bool:
    return isinstance(value, Mapping) and any(_is_picture(v) or _shows(v) for v in value.values())


def redaction(given: Iterable[str | Path | None]) -> Callable[[Any], Any]:
    """Takes folders out of plain values of any depth: the name of a file stays, where it lies does not.

    Where a picture comes from is left out altogether.
    """
    there = [Path(p) for p in given if p and os.path.exists(p)]
    known = {Path.cwd(), Path.home(), *(path.absolute() for path in there)}
    folders = {str(p) for path in known for p in (path, path.parent, path.resolve()) if len(p.parts) > 1}
    folders |= {str(path.parent) for path in there if len(path.parts) > 1}
    pattern = "|".join(re.escape(f) + "/*" for f in sorted(folders, key=len, reverse=True))
    return partial(hide_folders, folders=re.compile(pattern or "$^"))
