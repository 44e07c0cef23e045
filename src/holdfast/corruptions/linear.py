"""Blurs and resizes as matrices: every axis of an image is one product, exact at the border and for any width."""

from __future__ import annotations

import math
from functools import lru_cache
from typing import Literal

import numpy as np
import torch
from torch import Tensor

Border = Literal["edge", "mirror", "symmetric"]
"""What lies outside: the last pixel again (aaa|abc), a mirror in the last pixel (cb|abc), or beside it (ba|abc)."""


def fold(position: Tensor, size: int, border: Border) -> Tensor:
    """Whole positions, however far outside, as positions in 0..size-1."""
    if border == "edge" or size == 1:
        return position.clamp(0, size - 1)
    if border == "mirror":
        position = position.remainder(2 * size - 2)
        return torch.minimum(position, 2 * size - 2 - position)
    position = position.remainder(2 * size)
    return torch.minimum(position, 2 * size - 1 - position)


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
    """rows · x · columnsᵀ for images (..., H, W) and matrices (H', H), (W', W), or one of each an image."""
    rows, columns = (m.to(device=x.device, dtype=x.dtype) for m in (rows, columns))
    if rows.ndim == 3:
        return rows[:, None] @ x @ columns[:, None].mT
    return ((x @ columns.mT).mT @ rows.mT).mT


@lru_cache(maxsize=64)
def box_matrix(size: int, to: int) -> Tensor:
    """(to, size): Pillow's BOX filter, which takes a pixel wholly or not at all, by where its centre lies."""
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
    trim = (made - size) // 2
    at = (torch.arange(size, dtype=torch.float64) + trim) * ((kept - 1) / max(made - 1, 1))
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
