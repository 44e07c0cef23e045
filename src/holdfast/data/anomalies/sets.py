"""A set with anomalies among normal images."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

import torch
from torch import Tensor

from holdfast.data.resize import resize
from holdfast.data.splits import ArraySplit, Dataset

SETS: Final = ("representative_set_1", "representative_set_2")
"""Names of the test sets, as the report's file has them."""


@dataclass(frozen=True, eq=False)
class AnomalySet:
    """Normal images without and with labels, and test sets with anomalies among them.

    classes: names of the normal ones; in the test sets the label after the last of them is an anomaly.
    unlabeled: its labels are all -1. sets: the group is the kind of anomaly, -1 for normal images and where unknown.
    manifest: how the set was made; empty for one that was read.
    """

    classes: tuple[str, ...]
    unlabeled: ArraySplit
    labeled: ArraySplit
    sets: tuple[ArraySplit, ...]
    kinds: tuple[str, ...] = ()
    manifest: Mapping[str, Any] = field(default_factory=dict)

    def anomalous(self, split: ArraySplit) -> Tensor:
        """(N,) whether each image of a test set is an anomaly."""
        return split.labels == len(self.classes)

    def pooled(self) -> ArraySplit:
        """All test sets as one."""
        return ArraySplit(
            torch.cat([s.images for s in self.sets]),
            torch.cat([s.labels for s in self.sets]),
            torch.cat([s.groups for s in self.sets]),
            "pooled",
        )

    def to_train_on(self, name: str, *, image_size: int | None = None) -> Dataset:
        """The set for a classifier: labelled images to train on, what is normal in the test sets to test on."""
        pooled = self.pooled()
        test = pooled.subset((~self.anomalous(pooled)).nonzero().flatten())
        parts = [self.labeled, test, self.unlabeled]
        if image_size is not None:
            parts = [ArraySplit(resize(s.images, image_size), s.labels, s.groups, s.origin) for s in parts]
        train, test, unlabeled = parts
        note = (
            f"{len(train)} labelled images to train on, {len(unlabeled)} without label; {len(test)} normal ones to test"
        )
        return Dataset(name, self.classes, train, test=test, notes=(note,), unlabeled=unlabeled)
