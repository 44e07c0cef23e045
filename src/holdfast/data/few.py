"""A set of which only some images keep their label."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from holdfast.data.splits import Dataset, Split
from holdfast.data.unlabelled_images import open_pictures
from holdfast.errors import require
from holdfast.files import reading
from holdfast.rng import derive

REST = "rest"
"""What ``unlabeled`` is called that are the training images without their labels."""


def few_labels(
    data: Dataset, labels: int | None, *, unlabeled: str | Split | None = None, root: str | None = None, seed: int = 0
) -> Dataset:
    """A set that trains on so many labels, and has other images as ``unlabeled``.

    labels: None keeps all. unlabeled: pictures without labels; ``rest`` are the training images that lost theirs. None
    keeps what the set itself brings, and is the rest where it brings none.
    """
    chosen = (
        torch.arange(len(data.train)) if labels is None else choose(data.train.labels, labels, data.num_classes, seed)
    )
    if unlabeled is None and data.unlabeled is not None:
        others: Split | None = data.unlabeled
    elif unlabeled is None or unlabeled == REST:
        lost = torch.ones(len(data.train), dtype=torch.bool)
        lost[chosen] = False
        require(
            unlabeled is None or bool(lost.any()),
            f"all {len(data.train)} training images of {data.name} keep their label, so there is no rest; "
            "ask for fewer --labels, or name other pictures with --unlabeled",
        )
        others = data.train.subset(lost.nonzero().flatten()) if lost.any() else None
    else:
        with reading():
            others = open_pictures(unlabeled, root=root, shape=data.shape) if isinstance(unlabeled, str) else unlabeled
        require(
            others.shape == data.shape,
            f"unlabelled images have shape (C, H, W) {others.shape} and those of {data.name} {data.shape}; "
            "make them equal, for example with --image-size",
        )
    notes = data.notes if others is None else (*data.notes, f"{len(chosen)} labels, {len(others)} images without")
    return replace(data, train=data.train.subset(chosen), unlabeled=others, notes=notes)


def choose(labels: Tensor, count: int, classes: int, seed: int) -> Tensor:
    """Positions of ``count`` labels, as evenly over the classes as they go, drawn by the seed.

    >>> classes = torch.tensor([0, 0, 0, 0, 1, 1])
    >>> classes[choose(classes, 4, 2, seed=0)]
    tensor([0, 0, 1, 1])
    """
    require(
        classes <= count <= len(labels),
        f"labels must be in {classes}..{len(labels)} (at least one a class, at most all), got {count}",
    )
    generator = torch.Generator().manual_seed(derive(seed, "few-labels/choice"))
    order = torch.randperm(len(labels), generator=generator)
    rank = torch.empty(len(labels), dtype=torch.int64)
    for label in range(classes):
        own = order[labels[order] == label]
        rank[own] = torch.arange(len(own))
    # by rank within the class first: every class gets its n-th sample before any gets one more
    first = order[rank[order].argsort(stable=True)][:count]
    return first.sort().values
