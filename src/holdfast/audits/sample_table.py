"""A row a test image: what the model says of it, and the verdict of each check that speaks of single images."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Final

import torch
from torch import Tensor

from holdfast.audits.checks.slices import Slice, appearance, file_sizes
from holdfast.audits.checks.verdicts import RIGHT, WRONG, decode
from holdfast.audits.opening import Model
from holdfast.audits.partial_results import HIDDEN
from holdfast.audits.subject import Subject
from holdfast.errors import require, unknown
from holdfast.files import write_atomic
from holdfast.reports.samples_table import write_samples
from holdfast.types import Finding

KINDS: Final = ("csv", "parquet")


def sample_columns(
    model: Model, findings: Sequence[Finding], *, redacted: bool
) -> dict[str, list[str | int | float | None]]:
    """Columns of samples.csv: what the model says of each test image, and the verdict of each check that has one."""
    seen, data, split = model.subject.predictions, model.subject.data, model.subject.split
    confidence, prediction = seen.logits.softmax(1).max(1)
    groups: list[str | None] = [data.group_names[g] if 0 <= g < len(data.group_names) else None for g in seen.groups]
    columns: dict[str, list[Any]] = {
        "id": list(range(len(split))),
        "path": [HIDDEN] * len(split) if redacted else model.ids(),
        "label": [data.classes[i] for i in seen.labels],
        "prediction": [data.classes[i] for i in prediction],
        "confidence": [None] * len(split) if model.data.get("scores") is False else confidence.tolist(),
        "group": groups,
    }
    columns |= {f"group {name}": [word or None for word in words] for name, words in model.columns.test.items()}
    extra = model.columns.settings().get("slices", {}).get("columns", {})
    return columns | verdicts(model.subject, findings, extra)


def check_kind(kind: str) -> None:
    """Refuse a table that could not be written, before anything is measured."""
    if kind not in KINDS:
        raise unknown("kind of samples", kind, KINDS)
    require(
        kind != "parquet" or find_spec("pyarrow") is not None,
        "samples as Parquet need pyarrow; run: pip install 'holdfast[parquet]', or leave --samples out for CSV",
    )


def write_table(folder: Path, columns: Mapping[str, Sequence[str | int | float | None]], kind: str) -> None:
    """``samples.csv`` or ``samples.parquet``, whole or not at all; what an earlier audit left of the other goes."""
    if kind == "parquet":
        import pyarrow
        from pyarrow import parquet

        sink = pyarrow.BufferOutputStream()
        types = {"id": pyarrow.int64(), "confidence": pyarrow.float64()}
        arrays = {name: pyarrow.array(cells, types.get(name, pyarrow.string())) for name, cells in columns.items()}
        parquet.write_table(pyarrow.table(arrays), sink)
        write_atomic(folder / "samples.parquet", sink.getvalue().to_pybytes())
    else:
        write_samples(folder / "samples.csv", columns)
    for other in KINDS:
        if other != kind:
            (folder / f"samples.{other}").unlink(missing_ok=True)


def verdicts(
    subject: Subject, findings: Sequence[Finding], columns: Mapping[str, Tensor] | None = None
) -> dict[str, list[str | None]]:
    """One column a check that speaks of single images; None where it says nothing of one.

    accuracy: right or wrong. slices: the confirmed weak parts an image belongs to. columns: what they were searched in
    beyond appearance. Any other check leaves words in its evidence, see :mod:`holdfast.audits.checks.verdicts`.
    """
    made: dict[str, list[str | None]] = {
        "accuracy": [RIGHT if right else WRONG for right in subject.predictions.correct.tolist()]
    }
    confirmed = [f for f in findings if f.check == "slices" and f.evidence.get("confirmed") is True]
    if confirmed:
        made["slices"] = _in_slices(subject, confirmed, columns or {})
    for f in findings:
        given = f.evidence.get("verdicts")
        if isinstance(given, Mapping):
            column = made.setdefault(f.check, [None] * len(subject.split))
            for position, word in decode(given):
                column[position] = "; ".join(filter(None, (column[position], word)))
    return made


def _in_slices(subject: Subject, confirmed: Sequence[Finding], columns: Mapping[str, Tensor]) -> list[str | None]:
    values: dict[str, Any] = {**appearance(subject), **file_sizes(subject.split), **columns}
    parts: list[list[str]] = [[] for _ in range(len(subject.split))]
    for f in confirmed:
        evidence = f.evidence
        if evidence["attribute"] not in values:
            continue
        part = Slice(evidence["attribute"], evidence["side"], evidence["value"], 1.0)
        for i in torch.nonzero(part.members(values[part.attribute])).flatten().tolist():
            parts[i].append(f.where["slice"])
    return ["; ".join(own) for own in parts]
