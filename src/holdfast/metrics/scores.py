"""What each sample scores."""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor


def top_k(logits: Tensor, labels: Tensor, k: int) -> Tensor:
    """(N,) whether the label is among the k largest of (N, K) logits.

    >>> top_k(Tensor([[3.0, 2.0, 1.0]]), Tensor([1]), 2)
    tensor([True])
    """
    return (logits.topk(min(k, logits.shape[1]), dim=1).indices == labels[:, None]).any(1)


def nll(logits: Tensor, labels: Tensor) -> Tensor:
    """(N,) negative log-likelihood of the labels, in nats and float64."""
    return F.cross_entropy(logits.double(), labels, reduction="none")


def brier(logits: Tensor, labels: Tensor) -> Tensor:
    """(N,) squared distance of the probabilities from the truth, summed over classes: 0 is best, 2 worst."""
    p = logits.double().softmax(1)
    return (p.square().sum(1) - 2 * p.gather(1, labels[:, None]).squeeze(1) + 1).clamp_min(0)
