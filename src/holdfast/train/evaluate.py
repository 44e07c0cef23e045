"""A model's predictions on a split, and the scores that select an epoch."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from holdfast.augment.basic import to_float
from holdfast.data.loaders import Loader
from holdfast.data.splits import Split, bias_alignment
from holdfast.devices import autocast
from holdfast.losses import cross_entropy
from holdfast.metrics import worst
from holdfast.module_state import evaluating


@dataclass(frozen=True, eq=False)
class Predictions:
    """logits (N, K) float32, labels (N,) and groups (N,), in the order of the split, on one device."""

    logits: Tensor
    labels: Tensor
    groups: Tensor

    @property
    def correct(self) -> Tensor:
        return self.logits.argmax(1) == self.labels

    @property
    def losses(self) -> Tensor:
        return cross_entropy(self.logits, self.labels)

    @property
    def accuracy(self) -> float:
        return float(self.correct.double().mean())

    @property
    def worst_group(self) -> float | None:
        """Worst accuracy over (class, group) cells; None without groups."""
        known = self.groups >= 0
        cells = torch.where(known, self.labels * (self.groups.max() + 1) + self.groups, -1)
        return worst(self.correct, cells)

    def by_bias(self, usual: Tensor) -> dict[str, float]:
        """Accuracy of bias-aligned and of bias-conflicting samples, where there are some. usual: (K,) the usual group
        of each class in training; -1 where it has none."""
        parts = bias_alignment(self.labels, self.groups, usual.to(self.labels.device))
        own = {f"bias_{kind}": self.correct[which].double() for kind, which in parts.items()}
        return {kind: float(correct.mean()) for kind, correct in own.items() if len(correct)}


def predict(
    model: nn.Module,
    split: Split,
    loader: Loader,
    *,
    device: torch.device,
    precision: str = "fp32",
    memory_format: torch.memory_format = torch.contiguous_format,
) -> Predictions:
    """Logits of every image of a split, in evaluation mode, without augmentation."""
    how: dict[str, Any] = {"device": device, "precision": precision, "memory_format": memory_format}
    outputs = list(logits_of(model, loader, torch.arange(len(split)), **how))
    return Predictions(torch.cat(outputs), split.labels.to(device), split.groups.to(device))


@torch.no_grad()  # as torch does for generators: off while the caller works on what was yielded
def logits_of(
    model: nn.Module,
    loader: Loader,
    order: Tensor,
    *,
    device: torch.device,
    precision: str = "fp32",
    memory_format: torch.memory_format = torch.contiguous_format,
) -> Iterator[Tensor]:
    """The same of the images at some positions, batch by batch."""
    with evaluating(model), autocast(precision, device):
        for batch in loader.batches(order):
            yield model(to_float(batch.x).contiguous(memory_format=memory_format)).float()


def selection_score(rule: str, seen: Predictions) -> float:
    """What a selection rule maximises."""
    if rule == "val-loss":
        return -float(seen.losses.mean())
    if rule not in ("val-worst-class", "val-worst-group"):
        return seen.accuracy
    score = worst(seen.correct, seen.labels) if rule == "val-worst-class" else seen.worst_group
    assert score is not None, "there are groups, or the rule was refused before training"
    return score
