"""Front ``clean``: how well the model does on test images as they are."""

from __future__ import annotations

import base64
import io
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from holdfast.fronts.subject import Subject
from holdfast.metrics import mean_interval, wilson_interval
from holdfast.types import Finding

PICTURES = 24
THUMBNAIL = 96
"""Largest side, in pixels, of a picture kept in the findings."""


def clean(subject: Subject) -> tuple[Finding, ...]:
    """Accuracy over all, by class, by group, and on both sides of the shortcut; loss; sample pictures."""
    seen, data = subject.predictions, subject.data
    correct = seen.correct
    loss, low, high = mean_interval(seen.losses)
    findings = [
        accuracy(correct, {}),
        Finding("clean", "nll", loss, len(correct), low, high),
    ]
    for label, name in enumerate(data.classes):
        findings.append(accuracy(correct[seen.labels == label], {"class": name}))
    for group, name in enumerate(data.group_names):
        findings.append(accuracy(correct[seen.groups == group], {"group": name}))
    if subject.aligned is not None:
        sides = [
            accuracy(correct[subject.aligned], {"bias": "aligned"}),
            accuracy(correct[~subject.aligned], {"bias": "conflicting"}),
        ]
        findings += [*sides, harmonic_mean(*sides)]
    findings.append(Finding("clean", "samples", None, 0, evidence={"pictures": pictures(subject)}))
    return tuple(findings)


def accuracy(correct: Tensor, where: dict[str, str]) -> Finding:
    """Share of correct predictions with Wilson's interval; empty where there is no sample."""
    n, hits = len(correct), int(correct.sum())
    if n == 0:
        return Finding("clean", "accuracy", None, 0, where=where)
    return Finding("clean", "accuracy", hits / n, n, *wilson_interval(hits, n), where=where)


def harmonic_mean(a: Finding, b: Finding) -> Finding:
    """One number that is high only when both sides are."""
    if a.value is None or b.value is None:
        return Finding("clean", "harmonic-mean", None, 0)
    total = a.value + b.value
    return Finding("clean", "harmonic-mean", 2 * a.value * b.value / total if total else 0.0, a.n + b.n)


def pictures(subject: Subject) -> list[dict[str, Any]]:
    """Test images with what the model says of them: surest mistakes first, then the least sure hits."""
    seen, data = subject.predictions, subject.data
    confidence, prediction = seen.logits.softmax(1).max(1)
    order = torch.where(seen.correct, 1 + confidence, 1 - confidence).argsort(stable=True)[:PICTURES]
    images = subject.split.read(order)
    return [
        {
            "png": png(image),
            "label": data.classes[seen.labels[i]],
            "prediction": data.classes[prediction[i]],
            "confidence": float(confidence[i]),
            "group": data.group_names[seen.groups[i]] if data.group_names and seen.groups[i] >= 0 else None,
            "position": int(i),
            "source": subject.split.describe(int(i)),
        }
        for i, image in zip(order, images, strict=True)
    ]


def png(image: Tensor) -> str:
    """A uint8 image (C, H, W) as base64 PNG, no larger than a thumbnail."""
    pixels: Any = image.squeeze(0).numpy() if image.shape[0] == 1 else image.permute(1, 2, 0).numpy()
    picture = Image.fromarray(np.ascontiguousarray(pixels))
    picture.thumbnail((THUMBNAIL, THUMBNAIL))
    file = io.BytesIO()
    picture.save(file, format="PNG")
    return base64.b64encode(file.getvalue()).decode("ascii")
