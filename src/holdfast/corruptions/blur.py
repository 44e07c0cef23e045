"""ImageNet-C's blurs: Gaussian, defocus, glass, motion, zoom. x: images (B, C, H, W) in [0, 1]."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import lru_cache

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from holdfast.corruptions.imagenet_c import imagenet_c, severities
from holdfast.corruptions.pixels import fold, gaussian, truncate_to_bytes, uniform, whole, zoom, zoom_matrix

NEGLIGIBLE = 1e-9
"""Share of a kernel below which a tap is left out: far under one level of 255."""
SMALL = 2048
"""Pixels of an image up to which one product with a (HW, HW) matrix beats many small ones."""


@imagenet_c("gaussian-blur", about="Gaussian blur", order=5, extra=True)
@severities("sigma", cifar=(0.4, 0.6, 0.7, 0.8, 1.0), imagenet=(1, 2, 3, 4, 6))
def gaussian_blur(x: Tensor, *, sigma: float) -> Tensor:
    """A Gaussian of that many pixels; outside, the border pixel is repeated."""
    return gaussian(x, sigma)


@imagenet_c("defocus-blur", about="a lens out of focus", order=6)
@severities(
    "radius softness",
    cifar=((0.3, 0.4), (0.4, 0.5), (0.5, 0.6), (1, 0.2), (1.5, 0.1)),
    imagenet=((3, 0.1), (4, 0.5), (6, 0.5), (8, 0.5), (10, 0.5)),
)
def defocus_blur(x: Tensor, *, radius: float, softness: float) -> Tensor:
    """A disk, softened by a small Gaussian; the image is mirrored at the border."""
    kernel = disk(radius, softness).to(device=x.device, dtype=x.dtype)
    reach = len(kernel) // 2
    batch, channels, height, width = x.shape
    row, column = (fold(torch.arange(-reach, side + reach, device=x.device), side, "mirror") for side in x.shape[-2:])
    wide = x[:, :, row][..., column].reshape(batch * channels, 1, height + 2 * reach, width + 2 * reach)
    return F.conv2d(wide, kernel[None, None]).view(x.shape)


@lru_cache(maxsize=32)
def disk(radius: float, softness: float) -> Tensor:
    """The kernel of a defocused lens, cut down to where it is not 0. At least 17 pixels wide before the cut."""
    reach, soft = (8, 1) if radius <= 8 else (int(radius), 2)
    at = torch.arange(-reach, reach + 1, dtype=torch.float64)
    full = ((at[:, None] ** 2 + at**2) <= radius**2).to(torch.float64)
    kernel = gaussian(full / full.sum(), softness, border="mirror", truncate=soft / softness)
    used = int(kernel.max(0).values.nonzero().min())
    return kernel[used : len(kernel) - used, used : len(kernel) - used]


@imagenet_c("glass-blur", about="as through frosted glass: neighbouring pixels exchanged", order=7)
@severities(
    "sigma reach times",
    cifar=((0.05, 1, 1), (0.25, 1, 1), (0.4, 1, 1), (0.25, 1, 2), (0.4, 1, 2)),
    imagenet=((0.7, 1, 2), (0.9, 2, 1), (1, 2, 3), (1.1, 3, 2), (1.5, 4, 2)),
)
def glass_blur(x: Tensor, *, sigma: float, reach: int, times: int, generator: torch.Generator) -> Tensor:
    """Pixels replaced by near ones between two Gaussian blurs, as the published sets were made.

    Their code means to swap pixels but copies one over the other; this does the same, to stay comparable.
    """
    x = truncate_to_bytes(gaussian(x, sigma))
    shape = (len(x), times, *x.shape[-2:])
    down, right = (whole(shape, -reach, reach, like=x, generator=generator) for _ in range(2))
    for i in range(times):
        x = copy_neighbours(x, down[:, i], right[:, i], reach)
    return gaussian(x, sigma).clamp(0, 1)


def copy_neighbours(x: Tensor, down: Tensor, right: Tensor, reach: int) -> Tensor:
    """One pass from the last pixel to the first, each overwritten by the one at its offset (B, H, W).

    A pixel may copy one that was overwritten before it, so copies form chains. Doubling the length of every
    chain's first link a few times finds where each ends, for all pixels at once.
    """
    batch, channels, height, width = x.shape
    row, column = torch.arange(height, device=x.device)[:, None], torch.arange(width, device=x.device)
    moves = ((row > reach) & (row <= height - reach) & (column > reach) & (column <= width - reach)).expand_as(down)
    own = (row * width + column).expand_as(down)
    target = (row + down).clamp_max(height - 1) * width + (column + right).clamp_max(width - 1)
    source = torch.where(moves, target, own).flatten(1)
    # only a pixel behind one's own was overwritten before; the last link leads to one that was not yet
    chained = (source > own.flatten(1)) & moves.flatten(1).gather(1, source)
    for _ in range(math.ceil(math.log2(height * width)) if reach > 1 else 0):
        further = source.gather(1, source)
        source, chained = torch.where(chained, further, source), chained & chained.gather(1, source)
    return x.flatten(2).gather(2, source[:, None].expand(batch, channels, -1)).view_as(x)


@imagenet_c("motion-blur", about="a moving camera", order=8)
@severities(
    "radius sigma",
    cifar=((6, 1), (6, 1.5), (6, 2), (8, 2), (9, 2.5)),
    imagenet=((10, 3), (15, 5), (15, 8), (15, 12), (20, 15)),
)
def motion_blur(x: Tensor, *, radius: int, sigma: float, generator: torch.Generator) -> Tensor:
    """Smeared along a line at an angle in ±45°."""
    return smear(x, uniform((len(x),), -45, 45, like=x, generator=generator), radius=radius, sigma=sigma)


def smear(x: Tensor, degrees: Tensor, *, radius: int, sigma: float) -> Tensor:
    """Images (B, C, H, W) averaged along a ray at an angle (B,), by half a Gaussian, as ImageMagick does it."""
    batch, channels, height, width = x.shape
    weights = [math.exp(-(i**2) / (2 * sigma**2)) for i in range(2 * radius + 1)]
    weights = [w for w in weights if w > NEGLIGIBLE * sum(weights)]
    angle = torch.deg2rad(degrees)
    steps = torch.arange(len(weights), device=x.device, dtype=x.dtype)
    down, right = ((steps * f(angle)[:, None] - 0.5).ceil().long() for f in (torch.sin, torch.cos))
    row, column = torch.arange(height, device=x.device), torch.arange(width, device=x.device)
    image = torch.arange(batch, device=x.device)[:, None, None] * height
    pixels = x.permute(0, 2, 3, 1).reshape(-1, channels)
    out = torch.zeros_like(pixels)
    for i, weight in enumerate(weights):
        source_row = (row + down[:, i, None]).clamp(0, height - 1)[:, :, None]
        source_column = (column + right[:, i, None]).clamp(0, width - 1)[:, None]
        source = ((image + source_row) * width + source_column).flatten()
        out.add_(pixels.index_select(0, source), alpha=weight / sum(weights))
    return out.view(batch, height, width, channels).permute(0, 3, 1, 2).contiguous()


def _zooms(*last_and_step: tuple[float, float]) -> list[tuple[float, ...]]:
    return [tuple(np.arange(1, last, step).tolist()) for last, step in last_and_step]


@imagenet_c("zoom-blur", about="a camera that moves toward the scene", order=9)
@severities(
    "factors",
    cifar=_zooms((1.06, 0.01), (1.11, 0.01), (1.16, 0.01), (1.21, 0.01), (1.26, 0.01)),
    imagenet=_zooms((1.11, 0.01), (1.16, 0.01), (1.21, 0.02), (1.26, 0.02), (1.31, 0.03)),
)
def zoom_blur(x: Tensor, *, factors: Sequence[float]) -> Tensor:
    """The mean of the image and of itself magnified by every factor."""
    height, width = x.shape[-2:]
    if height * width <= SMALL:
        operator = _zoom_operator(height, width, tuple(factors)).to(device=x.device, dtype=x.dtype)
        return (x.flatten(2) @ operator.mT).view(x.shape)
    return sum((zoom(x, factor) for factor in factors), x) / (len(factors) + 1)


@lru_cache(maxsize=8)
def _zoom_operator(height: int, width: int, factors: tuple[float, ...]) -> Tensor:
    """(HW, HW): all of it as one matrix."""
    zooms = (torch.kron(zoom_matrix(height, factor), zoom_matrix(width, factor)) for factor in factors)
    return sum(zooms, torch.eye(height * width, dtype=torch.float64)) / (len(factors) + 1)
