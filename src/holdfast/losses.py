"""Losses, one value a sample: the caller weighs and averages."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor


def cross_entropy(logits: Tensor, label: Tensor) -> Tensor:
    """(B,) cross-entropy of logits (B, K) with classes (B,) or probabilities (B, K).

    Half-precision logits are widened first: the logarithm of a sum of exponentials needs the range.

    >>> cross_entropy(torch.zeros(1, 4), torch.tensor([2])).exp()
    tensor([4.])
    """
    if logits.dtype in (torch.float16, torch.bfloat16):
        logits = logits.float()
    return F.cross_entropy(logits, label, reduction="none")


def generalized_cross_entropy(logits: Tensor, y: Tensor, *, q: float = 0.7, scaled: bool = False) -> Tensor:
    """(B,) (1 − p_y^q) / q of Zhang and Sabuncu (2018): cross-entropy for q → 0, 1 − p_y for q = 1.

    scaled: q · p_y^q · cross-entropy with p_y held fixed, as the authors of LfF code it; its gradient is q times as
    long.

    >>> generalized_cross_entropy(torch.zeros(1, 4), torch.tensor([2]), q=1.0)
    tensor([0.7500])
    """
    loss = cross_entropy(logits, y)
    if scaled:
        return loss * (q * (-q * loss.detach()).exp())
    return -torch.expm1(-q * loss) / q
