"""Neighbours of a label: probabilities (B, K) around one class."""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor

from holdfast.errors import require


def one_hot(y: Tensor, num_classes: int) -> Tensor:
    """(B, K) in float32."""
    return F.one_hot(y, num_classes).float()


def smooth_labels(y: Tensor, num_classes: int, *, epsilon: float) -> Tensor:
    """1−ε on the class, ε/(K−1) on each other (ALPS, eq. 6); torch's label smoothing of ε·K/(K−1).

    >>> import torch
    >>> smooth_labels(torch.tensor([1]), 3, epsilon=0.5)
    tensor([[0.2500, 0.5000, 0.2500]])
    """
    require(num_classes >= 2, f"smoothing needs at least 2 classes, got {num_classes}")
    require(0 <= epsilon <= 1, f"epsilon must be in [0, 1], got {epsilon}")
    return one_hot(y, num_classes) * (1 - epsilon * num_classes / (num_classes - 1)) + epsilon / (num_classes - 1)


def adversarial_labels(logits: Tensor, y: Tensor, *, epsilon: float) -> Tensor:
    """The probabilities within L1 distance ε of the class for which cross-entropy is largest (ALPS, theorem 1).

    ε/2 moves from the class to the least likely one; where that is the class itself, nothing can get worse.

    >>> import torch
    >>> adversarial_labels(torch.tensor([[3.0, 1.0, 2.0]]), torch.tensor([0]), epsilon=0.5)
    tensor([[0.7500, 0.2500, 0.0000]])
    """
    require(0 <= epsilon <= 2, f"epsilon must be in [0, 2], the widest L1 distance of two labels, got {epsilon}")
    k = logits.shape[1]
    least = logits.detach().argmin(1)
    return one_hot(y, k) * (1 - epsilon / 2) + one_hot(least, k) * (epsilon / 2)
