"""Random draws of corruptions.

They are drawn where the generator lives and brought to where the images are: a CPU generator gives the same corruption
on every device, at the price of the transfer; a generator on the images' device costs nothing extra. Numbers have the
type of the images: in float64 two machines differ by rounding of the last bit at most.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor


def uniform(shape: Sequence[int], low: float, high: float, *, like: Tensor, generator: torch.Generator) -> Tensor:
    """Uniform in [low, high)."""
    drawn = torch.rand(tuple(shape), generator=generator, device=generator.device, dtype=like.dtype)
    return drawn.to(like.device) * (high - low) + low


def normal(shape: Sequence[int], *, like: Tensor, generator: torch.Generator) -> Tensor:
    """Standard normal."""
    return torch.randn(tuple(shape), generator=generator, device=generator.device, dtype=like.dtype).to(like.device)


def whole(shape: Sequence[int], low: int, high: int, *, like: Tensor, generator: torch.Generator) -> Tensor:
    """Whole numbers low, ..., high - 1, all equally likely."""
    return torch.randint(low, high, tuple(shape), generator=generator, device=generator.device).to(like.device)


def poisson(rate: Tensor, *, generator: torch.Generator) -> Tensor:
    """Counts with the given means."""
    return torch.poisson(rate.to(generator.device), generator=generator).to(rate.device)
