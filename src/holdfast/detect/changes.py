"""Changes that an encoder can learn to recognise beside quarter turns, so that damage as such becomes visible to it.

Each takes float images (B, C, H, W) in [0, 1] and a generator on their device, and changes every image in its own way.
None of them is among the damages that sets with anomalies are made with: a detector must not train on what it is
judged by.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Final

import torch
import torch.nn.functional as F
from torch import Tensor

Change = Callable[[Tensor, torch.Generator], Tensor]


def blurred(x: Tensor, generator: torch.Generator) -> Tensor:
    """Each pixel partly the mean of its 5×5 neighbours."""
    smooth = F.avg_pool2d(x, 5, 1, 2, count_include_pad=False)
    return x.lerp(smooth, _uniform(x, 0.6, 1.0, generator))


def flattened(x: Tensor, generator: torch.Generator) -> Tensor:
    """Contrast lost, or brightness gained: no pixel keeps its value."""
    factor, level = _uniform(x, 0.3, 0.7, generator), _uniform(x, 0.0, 0.5, generator)
    return (factor * x + (1 - factor) * level).clamp(0, 1)


def pasted(x: Tensor, generator: torch.Generator) -> Tensor:
    """A rectangle of another image, upside down, over a quarter to a half of each side (CutPaste, Li et al., 2021)."""
    height, width = x.shape[2:]
    inside = torch.ones_like(x[:, :1], dtype=torch.bool)
    for length, axis in ((height, 2), (width, 3)):
        side = _uniform(x, 0.25, 0.5, generator) * length
        start = torch.rand(len(x), 1, 1, 1, device=x.device, generator=generator) * (length - side)
        shape = [1, 1, 1, 1]
        shape[axis] = length
        place = torch.arange(length, device=x.device).view(shape)
        inside = inside & (place >= start) & (place < start + side)
    return torch.where(inside, _others(x, generator).flip(2), x)


def mixed(x: Tensor, generator: torch.Generator) -> Tensor:
    """Two images over each other."""
    return x.lerp(_others(x, generator), _uniform(x, 0.3, 0.5, generator))


def bent(x: Tensor, generator: torch.Generator) -> Tensor:
    """Rows and columns moved along a wave."""
    n, _, height, width = x.shape
    size = [n, 1, height, width]
    still = F.affine_grid(torch.eye(2, 3, device=x.device).expand(n, 2, 3), size, align_corners=False)
    amplitude, phase = (_uniform(x, *ends, generator) for ends in ((0.12, 0.25), (0.0, 2 * math.pi)))
    waves = torch.sin(2.5 * math.pi * still.flip(3) + phase)
    return F.grid_sample(x, still.to(x.dtype) + amplitude * waves, align_corners=False)


CHANGES: Final[dict[str, Change]] = {
    "blurred": blurred,
    "flattened": flattened,
    "pasted": pasted,
    "mixed": mixed,
    "bent": bent,
}


def change_each(x: Tensor, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """(images, (B,) which change): image i is changed by the i-th of them, counted over and over."""
    which = torch.arange(len(x), device=x.device) % len(CHANGES)
    made = torch.empty_like(x)
    for number, change in enumerate(CHANGES.values()):
        if number < len(x):
            made[number :: len(CHANGES)] = change(x[number :: len(CHANGES)], generator)
    return made, which


def _others(x: Tensor, generator: torch.Generator) -> Tensor:
    """For each image another one of the batch: a neighbour at a random distance."""
    n = len(x)
    step = 1 + torch.randint(max(n - 1, 1), (n,), device=x.device, generator=generator)
    return x[(torch.arange(n, device=x.device) + step) % n]


def _uniform(x: Tensor, low: float, high: float, generator: torch.Generator) -> Tensor:
    return low + (high - low) * torch.rand(len(x), 1, 1, 1, device=x.device, dtype=x.dtype, generator=generator)
