"""Geometry: elastic. x: images (B, C, H, W) in [0, 1]."""

from __future__ import annotations

import torch
from torch import Tensor

from holdfast.corruptions.draw import uniform
from holdfast.corruptions.linear import gaussian
from holdfast.corruptions.warp import pixel_grid, sample, solve_affine


def elastic(x: Tensor, *, shift: float, sigma: float, affine: float, generator: torch.Generator) -> Tensor:
    """A random affine map, then pixels moved by smoothed noise. Lengths are shares of the shorter side."""
    side = min(x.shape[-2:])
    moved = uniform((len(x), 3, 2), -affine * side, affine * side, like=x, generator=generator)
    x = affine_jitter(x, moved)
    if shift == 0:
        return x.clamp(0, 1)
    field = uniform((len(x), 2, *x.shape[-2:]), -1, 1, like=x, generator=generator)
    return displace(x, gaussian(field, sigma * side, border="symmetric", truncate=3) * (shift * side))


def affine_jitter(x: Tensor, moved: Tensor) -> Tensor:
    """Three points around the middle moved by (B, 3, 2) pixels (x, y), and the image with them."""
    height, width = x.shape[-2:]
    centre = torch.tensor([width // 2, height // 2], dtype=x.dtype, device=x.device)
    reach = min(height, width) // 3
    corners = torch.tensor([[1, 1], [1, -1], [-1, -1]], dtype=x.dtype, device=x.device) * reach + centre
    back = solve_affine(corners + moved, corners.expand_as(moved))[:, :, :, None, None]
    row, column = pixel_grid(x)
    source = back[:, :, 0] * column + back[:, :, 1] * row + back[:, :, 2]
    return sample(x, source[:, 1], source[:, 0], border="mirror")


def displace(x: Tensor, field: Tensor) -> Tensor:
    """Every pixel read off at an offset (B, 2, H, W) of (columns, rows)."""
    row, column = pixel_grid(x)
    return sample(x, row + field[:, 1], column + field[:, 0], border="symmetric").clamp(0, 1)
