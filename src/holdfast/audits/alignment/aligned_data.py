"""A model and a data set under the same classes: outputs as logits in the data's order, labels moved by name.

Samples of classes that the model does not know are set aside.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn

from holdfast.audits.alignment.classes import ClassMatch
from holdfast.audits.alignment.outputs import to_logits
from holdfast.data.splits import ArraySplit, Dataset, Split
from holdfast.models import PreprocessedModel


class AlignedModel(nn.Module):
    """Images (B, C, H, W) in [0, 1] at the data's size to logits (B, K), one a class.

    kind: what the prepared model gives. selection: its outputs that stand for each class; several are added up as
    probabilities.
    """

    columns: Tensor
    unused: Tensor

    def __init__(self, prepared: PreprocessedModel, kind: str, selection: Sequence[Sequence[int]]) -> None:
        super().__init__()
        self.prepared = prepared
        self.kind = kind
        widest = max(map(len, selection))
        # Short rows repeat their first output; where more than one counts, a mask leaves the repeats out.
        padded = [[*own, *[own[0]] * (widest - len(own))] for own in selection]
        used = [[True] * len(own) + [False] * (widest - len(own)) for own in selection]
        device = prepared.normalised.mean.device
        self.register_buffer("columns", torch.tensor(padded, device=device))
        self.register_buffer("unused", ~torch.tensor(used, device=device))
        self.training = prepared.training

    def forward(self, x: Tensor) -> Tensor:
        logits = to_logits(self.prepared(x), self.kind)
        if self.columns.shape[1] == 1:
            return logits[:, self.columns[:, 0]]
        return logits[:, self.columns].masked_fill(self.unused, float("-inf")).logsumexp(2)


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
