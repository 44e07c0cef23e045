"""A row a test image: what the model says of it, and the verdict of each front that speaks of single images."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch

from holdfast.experiment.audit.files import HIDDEN
from holdfast.experiment.audit.opening import Model
from holdfast.fronts import Subject
from holdfast.fronts.slices import Slice, appearance, file_sizes
from holdfast.types import Finding

RIGHT, WRONG = "right", "wrong"


def sample_columns(
    model: Model, findings: Sequence[Finding], *, redacted: bool
) -> dict[str, list[str | int | float | None]]:
    """Columns of samples.csv: what the model says of each test image, and the verdict of each front that has one."""
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
    return columns | verdicts(model.subject, findings)


def verdicts(subject: Subject, findings: Sequence[Finding]) -> dict[str, list[str | None]]:
    """One column a front that speaks of single images; None where it did not look at one.

    clean: right or wrong. groups: "worst" in the worst cell. slices: the confirmed weak parts an image belongs to. Any
    front may give more: a finding whose evidence has ``verdicts``, {"positions": [...], "right": [...]}.
    """
    made: dict[str, list[str | None]] = {
        "clean": [RIGHT if right else WRONG for right in subject.predictions.correct.tolist()]
    }
    worst = [f for f in findings if (f.front, f.name) == ("groups", "worst-group") and "cell" in f.evidence]
    if worst and "group" in worst[0].evidence["cell"]:
        made["groups"] = _in_cell(subject, worst[0].evidence["cell"])
    confirmed = [f for f in findings if f.front == "slices" and f.evidence.get("confirmed") is True]
    if confirmed:
        made["slices"] = _in_slices(subject, confirmed)
    for f in findings:
        given = f.evidence.get("verdicts")
        if isinstance(given, Mapping):
            column = made.setdefault(f.front, [None] * len(subject.split))
            for position, right in zip(given["positions"], given["right"], strict=True):
                column[position] = RIGHT if right else WRONG
    return made


def _in_cell(subject: Subject, cell: Mapping[str, str]) -> list[str | None]:
    data, seen = subject.data, subject.predictions
    inside = seen.labels == data.classes.index(cell["class"])
    if cell["group"] in data.group_names:
        inside &= seen.groups == data.group_names.index(cell["group"])
    return ["worst" if i else "" for i in inside.tolist()]


def _in_slices(subject: Subject, confirmed: Sequence[Finding]) -> list[str | None]:
    values: dict[str, Any] = {**appearance(subject), **file_sizes(subject.split)}
    parts: list[list[str]] = [[] for _ in range(len(subject.split))]
    for f in confirmed:
        evidence = f.evidence
        if evidence["attribute"] not in values:
            continue
        part = Slice(evidence["attribute"], evidence["side"], evidence["value"], 1.0)
        for i in torch.nonzero(part.members(values[part.attribute])).flatten().tolist():
            parts[i].append(f.where["slice"])
    return ["; ".join(own) for own in parts]
