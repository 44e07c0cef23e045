"""A row a test image: what the model says of it, and the verdict of each check that speaks of single images."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import torch
from torch import Tensor

from holdfast.audits.checks.slices import Slice, appearance, file_sizes
from holdfast.audits.checks.verdicts import RIGHT, WRONG, decode
from holdfast.audits.opening import Model
from holdfast.audits.partial_results import HIDDEN
from holdfast.audits.subject import Subject
from holdfast.data.tables import require_writable, write_table
from holdfast.errors import require, unknown
from holdfast.types import Finding

KINDS: Final = ("csv", "parquet")
FIRST: Final = ("id", "path", "label", "prediction", "confidence", "group")
"""Columns that are always there; one per check follows."""


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
    require_writable(f".{kind}")


def write_samples(folder: Path, columns: Mapping[str, Sequence[str | int | float | None]], kind: str) -> None:
    """``samples.csv`` or ``samples.parquet``, whole or not at all; what an earlier audit left of the other goes."""
    missing = [name for name in FIRST if name not in columns]
    require(not missing, f"a table of samples needs the columns {', '.join(missing)}")
    ordered = {name: columns[name] for name in FIRST} | dict(columns)
    write_table(folder / f"samples.{kind}", ordered, types={"id": int, "confidence": float})
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
