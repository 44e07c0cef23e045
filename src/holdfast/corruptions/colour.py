"""What the corruptions need to know of colour."""

from __future__ import annotations

import torch
from torch import Tensor

LUMA = (0.299, 0.587, 0.114)
"""Weights of red, green and blue in brightness (ITU-R BT.601)."""


def luminance(x: Tensor) -> Tensor:
    """(B, 1, H, W) brightness of RGB (B, 3, H, W); grey images stay as they are."""
    if x.shape[1] == 1:
        return x
    return (x * torch.tensor(LUMA, dtype=x.dtype, device=x.device).view(3, 1, 1)).sum(1, keepdim=True)


def constant(colour: tuple[int, int, int], like: Tensor) -> Tensor:
    """(3, 1, 1) in [0, 1] of an RGB colour in 0..255."""
    return torch.tensor(colour, dtype=like.dtype, device=like.device).view(3, 1, 1) / 255
