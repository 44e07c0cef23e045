"""Noise: gaussian, shot, impulse, speckle. x: images (B, C, H, W) in [0, 1]."""

from __future__ import annotations

import torch
from torch import Tensor

from holdfast.corruptions.draw import normal, poisson, uniform


def gaussian_noise(x: Tensor, *, scale: float, generator: torch.Generator) -> Tensor:
    """x + N(0, scale²) in every value."""
    return (x + scale * normal(x.shape, like=x, generator=generator)).clamp(0, 1)


def speckle_noise(x: Tensor, *, scale: float, generator: torch.Generator) -> Tensor:
    """x · (1 + N(0, scale²)): what is brighter is noisier."""
    return (x + scale * x * normal(x.shape, like=x, generator=generator)).clamp(0, 1)


def shot_noise(x: Tensor, *, photons: float, generator: torch.Generator) -> Tensor:
    """Poisson(photons · x) / photons: a sensor that counts so many photons for white."""
    return (poisson(x * photons, generator=generator) / photons).clamp(0, 1)


def impulse_noise(x: Tensor, *, amount: float, generator: torch.Generator) -> Tensor:
    """A share of all values, channel by channel, set to 0 or 1 with equal chance."""
    chance = uniform(x.shape, 0, 1, like=x, generator=generator)
    replaced = torch.where(chance < amount / 2, torch.zeros_like(x), x)
    return torch.where((chance >= amount / 2) & (chance < amount), torch.ones_like(x), replaced)
