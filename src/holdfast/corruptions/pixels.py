"""What corruptions are built from: colour, rounding to bytes, blurs and resizes, resampling, and random draws.

Open this file to write a corruption. Blurs and resizes are matrices: every axis of an image is one product, exact at
the border and for any width.

Random numbers are drawn where the generator lives and brought to where the images are: a CPU generator gives the
same corruption on every device, at the price of the transfer; a generator on the images' device costs nothing extra.
Numbers have the type of the images: in float64 two machines differ by rounding of the last bit at most.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import lru_cache
from typing import Literal

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

LUMA = (0.299, 0.587, 0.114)
"""Weights of red, green and blue in brightness (ITU-R BT.601)."""


def luminance(x: Tensor) -> Tensor:
    """(B, 1, H, W) brightness of RGB (B, 3, H, W); grey images are returned unchanged."""
    if x.shape[1] == 1:
        return x
    return (x * torch.tensor(LUMA, dtype=x.dtype, device=x.device).view(3, 1, 1)).sum(1, keepdim=True)


def constant(colour: tuple[int, int, int], like: Tensor) -> Tensor:
    """(3, 1, 1) in [0, 1] of an RGB colour in 0..255."""
    return torch.tensor(colour, dtype=like.dtype, device=like.device).view(3, 1, 1) / 255


GRID = 2.0**24
"""Parts of one level. Values are first brought to this grid: a tie that one machine computes as 2.4999999999 and
another as 2.5000000001 becomes 2.5 on both. In float64, what is left to chance is a value within some 1e-13 levels of
the middle between two points of the grid: less than one in a thousand sets of 60,000 small images."""


def to_bytes(x: Tensor) -> Tensor:
    """[0, 1] as uint8, ties upward.

    >>> to_bytes(torch.tensor([0.0, 0.5, 1.0]))
    tensor([  0, 128, 255], dtype=torch.uint8)
    """
    return _levels(x * 255).add_(0.5).floor_().clamp_(0, 255).to(torch.uint8)


def truncate_to_bytes(x: Tensor) -> Tensor:
    """[0, 1] cut down to multiples of 1/255, as a conversion to uint8 does."""
    return _levels(x * 255).floor_() / 255


def _levels(values: Tensor) -> Tensor:
    grid = GRID if values.dtype == torch.float64 else 1024  # float32 has no bits left for the grid
    return (values * grid).round_().div_(grid)


Border = Literal["edge", "mirror", "symmetric"]
"""Outside the image: the last pixel again (aaa|abc), a mirror in the last pixel (cb|abc), or beside it (ba|abc)."""


def fold(position: Tensor, size: int, border: Border) -> Tensor:
    """Whole positions, however far outside, as positions in 0..size-1."""
    if border == "edge" or size == 1:
        return position.clamp(0, size - 1)
    period, turn = (2 * size - 2, 2 * size - 2) if border == "mirror" else (2 * size, 2 * size - 1)
    position = position.remainder(period)
    return torch.minimum(position, turn - position)


def gaussian_matrices(size: int, sigma: Tensor, radius: Tensor, border: Border) -> Tensor:
    """(B, size, size): row i of a matrix averages around i by a Gaussian cut off beyond its radius.

    sigma, radius: (B,), radius in whole pixels.
    """
    reach = int(radius.max())
    tap = torch.arange(-reach, reach + 1, device=sigma.device)
    weight = torch.exp(-(tap**2) / (2 * sigma[:, None] ** 2).clamp_min(1e-12)) * (tap.abs() <= radius[:, None])
    weight = weight / weight.sum(1, keepdim=True)
    source = fold(torch.arange(size, device=sigma.device)[:, None] + tap, size, border)
    matrix = torch.zeros(len(sigma), size, size, dtype=sigma.dtype, device=sigma.device)
    shape = (len(sigma), size, len(tap))
    return matrix.scatter_add_(2, source.expand(shape), weight[:, None].expand(shape))


def gaussian(x: Tensor, sigma: float, *, border: Border = "edge", truncate: float = 4.0) -> Tensor:
    """Images (..., H, W) blurred, as scikit-image and scipy do it: cut off at int(truncate σ + 1/2)."""
    return separable(x, *(_gaussian(side, sigma, int(truncate * sigma + 0.5), border) for side in x.shape[-2:]))


@lru_cache(maxsize=64)
def _gaussian(size: int, sigma: float, radius: int, border: Border) -> Tensor:
    return gaussian_matrices(size, torch.tensor([sigma], dtype=torch.float64), torch.tensor([radius]), border)[0]


def separable(x: Tensor, rows: Tensor, columns: Tensor) -> Tensor:
    """rows · x · columnsᵀ for images (..., H, W) and matrices (H', H), (W', W), or one of each per image."""
    rows, columns = (m.to(device=x.device, dtype=x.dtype) for m in (rows, columns))
    return rows[:, None] @ x @ columns[:, None].mT if rows.ndim == 3 else ((x @ columns.mT).mT @ rows.mT).mT


@lru_cache(maxsize=64)
def box_matrix(size: int, to: int) -> Tensor:
    """(to, size): Pillow's BOX filter, which takes a pixel entirely or not at all, depending on its centre."""
    scale = max(size / to, 1.0)
    centre = (np.arange(to) + 0.5)[:, None] * size / to
    distance = (np.arange(size) + 0.5 - centre) / scale
    inside = (distance > -0.5 + 1e-9) & (distance <= 0.5 + 1e-9)
    return torch.from_numpy(inside / inside.sum(1, keepdims=True))


@lru_cache(maxsize=256)
def zoom_matrix(size: int, factor: float) -> Tensor:
    """(size, size): the middle of a line, magnified by a factor >= 1 between its first and last pixel.

    The middle ceil(size / factor) pixels become round(that · factor), of which the middle ``size`` are kept.
    """
    kept = math.ceil(size / factor)
    first = (size - kept) // 2
    made = round(kept * factor)
    at = (torch.arange(size, dtype=torch.float64) + (made - size) // 2) * ((kept - 1) / max(made - 1, 1))
    low = at.floor().clamp(0, kept - 1)
    share = at - low
    matrix = torch.zeros(size, size, dtype=torch.float64)
    row = torch.arange(size)
    matrix.index_put_((row, first + low.long()), 1 - share, accumulate=True)
    matrix.index_put_((row, first + (low.long() + 1).clamp_max(kept - 1)), share, accumulate=True)
    return matrix


def zoom(x: Tensor, factor: float) -> Tensor:
    """Images (..., H, W) magnified around their middle, of the same size."""
    return separable(x, *(zoom_matrix(side, factor) for side in x.shape[-2:]))


def pixel_grid(x: Tensor) -> tuple[Tensor, Tensor]:
    """(row (H, 1), column (1, W)) of every pixel of images (B, C, H, W)."""
    row, column = (torch.arange(side, device=x.device, dtype=x.dtype) for side in x.shape[-2:])
    return row[:, None], column[None]


def sample(x: Tensor, row: Tensor, column: Tensor, *, border: Border) -> Tensor:
    """Images (B, C, H, W) at places (B, H', W') given in pixels, by bilinear interpolation."""
    through_centres, sided = border == "mirror", zip((column, row), (x.shape[-1], x.shape[-2]), strict=True)
    places = [2 * at / max(size - 1, 1) - 1 if through_centres else (2 * at + 1) / size - 1 for at, size in sided]
    padding = "border" if border == "edge" else "reflection"
    grid = torch.stack(places, dim=-1)
    return F.grid_sample(x, grid, mode="bilinear", padding_mode=padding, align_corners=through_centres)


def solve_perspective(source: Tensor, target: Tensor) -> Tensor:
    """(B, 8): a, …, h of (ax+by+c, dx+ey+f) / (gx+hy+1), which takes four points (B, 4, 2) to four others."""
    x, y = source.unbind(-1)
    u, v = target.unbind(-1)
    one, zero = torch.ones_like(x), torch.zeros_like(x)
    upper = torch.stack([x, y, one, zero, zero, zero, -u * x, -u * y], dim=-1)
    lower = torch.stack([zero, zero, zero, x, y, one, -v * x, -v * y], dim=-1)
    solved: Tensor = torch.linalg.solve(torch.cat([upper, lower], dim=1), torch.cat([u, v], dim=1))
    return solved


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
