"""From float to bytes so that machines whose arithmetic differs in the last bits still agree."""

from __future__ import annotations

import torch
from torch import Tensor

GRID = 2.0**24
"""Parts of one level. Values are first brought to this grid: a tie that one machine computes as 2.4999999999 and
another as 2.5000000001 becomes 2.5 on both. In float64, what is left to chance is a value within some 1e-13 levels of
the middle between two points of the grid: less than one in a thousand sets of 60,000 small images."""


def to_bytes(x: Tensor) -> Tensor:
    """[0, 1] as uint8, ties upward."""
    return _levels(x * 255).add_(0.5).floor_().clamp_(0, 255).to(torch.uint8)


def truncate_to_bytes(x: Tensor) -> Tensor:
    """[0, 1] cut down to multiples of 1/255, as a conversion to uint8 does."""
    return _levels(x * 255).floor_() / 255


def _levels(values: Tensor) -> Tensor:
    if values.dtype != torch.float64:  # float32 has no bits left for the grid
        return (values * 1024).round_().div_(1024)
    return (values * GRID).round_().div_(GRID)
