"""A data set under the classes of a reading. Labels move by name only; samples of unknown classes are set aside."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from holdfast.audits.alignment.classes import ClassMatch
from holdfast.data.splits import ArraySplit, Dataset, Split


@dataclass(frozen=True, eq=False)
class Relabelled:
    """A split whose labels are others'."""

    inner: Split
    labels: Tensor

    @property
    def groups(self) -> Tensor:
        return self.inner.groups

    @property
    def shape(self) -> tuple[int, int, int]:
        return self.inner.shape

    def __len__(self) -> int:
        return len(self.labels)

    def read(self, index: Tensor) -> Tensor:
        return self.inner.read(index)

    def subset(self, index: Tensor) -> Relabelled:
        return Relabelled(self.inner.subset(index), self.labels[index])

    def describe(self, position: int) -> str:
        return self.inner.describe(position)

    def key(self, position: int) -> str | int:
        return self.inner.key(position)


def relabel(data: Dataset, match: ClassMatch, reading: str) -> Dataset:
    """The data under a reading's class names: its own classes first and in its own order, so that labels stay as they
    are where the model knows every class."""
    names = match.names(reading)
    if not match.missing:
        return replace(data, classes=names)
    new = torch.full((len(match.data),), -1)
    new[list(match.known)] = torch.arange(len(match.known))

    def move(split: Split | None) -> Split | None:
        if split is None:
            return None
        kept = split.subset((new[split.labels] >= 0).nonzero().flatten())
        labels = new[kept.labels]
        return replace(kept, labels=labels) if isinstance(kept, ArraySplit) else Relabelled(kept, labels)

    train = move(data.train)
    assert train is not None
    return replace(data, classes=names, train=train, val=move(data.val), test=move(data.test))


def set_aside(split: Split, match: ClassMatch) -> int:
    """How many samples belong to classes the model does not know."""
    known = torch.zeros(len(match.data), dtype=torch.bool)
    known[list(match.known)] = True
    return int((~known[split.labels]).sum())
