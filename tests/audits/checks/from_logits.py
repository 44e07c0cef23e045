"""A subject whose predictions are given: what a check makes of them can then be counted by hand."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from holdfast.audits.subject import Subject
from holdfast.data import ArraySplit, Dataset
from holdfast.train.evaluate import Predictions
from holdfast.types import Finding


def split(labels: Tensor, groups: Tensor | None = None, images: Tensor | None = None) -> ArraySplit:
    n = len(labels)
    pixels = torch.zeros(n, 1, 4, 4, dtype=torch.uint8) if images is None else images
    return ArraySplit(pixels, labels, torch.full((n,), -1) if groups is None else groups)


def told(
    logits: Tensor,
    test: ArraySplit,
    *,
    train: ArraySplit | None = None,
    group_names: tuple[str, ...] = (),
    model: nn.Module | None = None,
    seed: int = 0,
) -> Subject:
    classes = tuple(f"c{i}" for i in range(logits.shape[1]))
    known = train if train is not None else split(torch.arange(len(classes)))
    data = Dataset("told", classes, train=known, test=test, group_names=group_names)
    subject = Subject(model or nn.Identity(), data, torch.device("cpu"), workers=0, seed=seed)
    subject.__dict__["predictions"] = Predictions(logits, test.labels, test.groups)
    return subject


def one_hot(prediction: Tensor, classes: int, *, scale: float = 5.0) -> Tensor:
    """Logits of a model that says so."""
    return scale * torch.nn.functional.one_hot(prediction, classes).float()


def get(findings: Sequence[Finding], name: str, **where: str) -> Finding:
    """The one finding of that name and part; ``class_`` is ``class``."""
    part = {key.rstrip("_"): value for key, value in where.items()}
    (found,) = [f for f in findings if f.name == name and f.where == part]
    return found
