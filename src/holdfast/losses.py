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
