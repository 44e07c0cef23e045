"""How much each class counts in the loss, from ``--class-weights``."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor

from holdfast.errors import require
from holdfast.types import View, Views


def class_weights(given: Sequence[float | str], labels: Tensor, classes: Sequence[str]) -> Tensor | None:
    """(K,) a weight per class whose mean over the training samples is 1, so that learning rates mean the same.

    given: nothing, "balanced" (as much for each class, however many samples it has) or one number per class.
    labels: (N,) of the training set.

    >>> class_weights(["balanced"], torch.tensor([0, 0, 0, 1]), ["cat", "dog"])
    tensor([0.6667, 2.0000])
    """
    if not given:
        return None
    counts = torch.bincount(labels.cpu(), minlength=len(classes)).double()
    if given[0] == "balanced":
        weights = torch.where(counts > 0, 1 / counts.clamp_min(1), 0.0)
    else:
        named = ", ".join(map(str, classes[:8])) + ", ..." * (len(classes) > 8)
        wrong = f"class_weights has {len(given)} numbers, and the data has {len(classes)} classes ({named})"
        require(len(given) == len(classes), f"{wrong}; give one number per class, or balanced")
        weights = torch.tensor([float(weight) for weight in given], dtype=torch.float64)
    total = float((weights * counts).sum())
    require(total > 0, "class_weights leaves no training sample that counts; give a class of the data a number > 0")
    return (weights * (counts.sum() / total)).float()


def class_weighted(views: Views, weights: Tensor) -> Views:
    """Views whose samples also count by their class, as in torch's cross-entropy: - Σ_k w_k t_k log p_k."""
    weigh = views.weigh

    def of(view: View) -> View:
        if view.label.ndim == 2:
            return replace(view, label=view.label * weights)
        own = weights[view.label]
        return replace(view, weight=own if view.weight is None else own * view.weight)

    later = None if weigh is None else lambda logits: class_weighted(weigh(logits), weights)
    return replace(views, items=tuple(map(of, views.items)), weigh=later)
