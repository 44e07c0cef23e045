"""Weak and strong augmentation of whole batches on their device, for learning from few labels."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor

from holdfast.augment.basic import crop_and_flip, cutout


def weak(x: Tensor, generator: torch.Generator, *, shift: int = 2, flip: bool = False) -> Tensor:
    """Float images moved by a few pixels and, where mirroring means nothing, mirrored."""
    return crop_and_flip(x, pad=shift, flip=flip, generator=generator)


def strong(x: Tensor, generator: torch.Generator, *, flip: bool = False) -> Tensor:
    """Moved, turned by up to 20°, stretched and sheared a little, contrast and brightness changed, a square cut out."""
    n, channels, height, _ = x.shape
    draw = torch.rand(7, n, device=x.device, generator=generator) * 2 - 1
    angle, shear, scale_x, scale_y = draw[0] * math.pi / 9, draw[1] * 0.2, 1 + 0.2 * draw[2], 1 + 0.2 * draw[3]
    cos, sin = angle.cos(), angle.sin()
    zero = torch.zeros_like(cos)
    matrix = torch.stack(
        [
            torch.stack([cos * scale_x, -sin * scale_y + shear, zero], 1),
            torch.stack([sin * scale_x, cos * scale_y, zero], 1),
        ],
        1,
    )
    grid = F.affine_grid(matrix, [n, channels, height, x.shape[3]], align_corners=False)
    x = F.grid_sample(x, grid.to(x.dtype), align_corners=False)
    x = weak(x, generator, shift=3, flip=flip)
    x = x * (1 + 0.3 * draw[4]).view(-1, 1, 1, 1) + 0.1 * draw[5].view(-1, 1, 1, 1)
    grey = torch.full((channels,), 0.5, device=x.device)
    return cutout(x.clamp(0, 1), side=max(2, height * 3 // 8), p=0.8, fill=grey, generator=generator)
