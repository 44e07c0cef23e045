"""The fronts of an audit: each takes a subject and returns findings. One file a front."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from torch import nn

from holdfast.data import Dataset, load
from holdfast.errors import unknown
from holdfast.fronts.attacks import attacks
from holdfast.fronts.clean import clean
from holdfast.fronts.corruptions import corruptions
from holdfast.fronts.curvature import curvature
from holdfast.fronts.groups import groups
from holdfast.fronts.saliency import saliency
from holdfast.fronts.slices import slices
from holdfast.fronts.subject import Subject
from holdfast.fronts.unknown import unknown as unknown_inputs
from holdfast.train.api import resolve_device
from holdfast.types import Finding

FRONTS: Mapping[str, Callable[[Subject], tuple[Finding, ...]]] = {
    "clean": clean,
    "groups": groups,
    "slices": slices,
    "corruptions": corruptions,
    "attacks": attacks,
    "unknown": unknown_inputs,
    "curvature": curvature,
    "saliency": saliency,
}

__all__ = ["FRONTS", "Subject", "audit"]


def audit(
    model: nn.Module,
    data: str | Path | Dataset,
    *,
    only: Sequence[str] | None = None,
    device: str = "auto",
    batch_size: int = 256,
    precision: str = "fp32",
    seed: int = 0,
) -> tuple[Finding, ...]:
    """Measure a model on every front, or on those named in ``only``.

    model: any module from images in [0, 1] to logits; it is given back as it was, on the audit's device.
    """
    chosen = list(FRONTS) if only is None else list(only)
    for name in chosen:
        if name not in FRONTS:
            raise unknown("front", name, FRONTS)
    where = resolve_device(device)
    dataset = data if isinstance(data, Dataset) else load(data)
    subject = Subject(model.to(where), dataset, where, batch_size=batch_size, precision=precision, seed=seed)
    return tuple(finding for name in chosen for finding in FRONTS[name](subject))
