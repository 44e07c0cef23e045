"""The eight corruptions of BiasAdv's robustness table (D.3), as imgaug defines them, for whole batches.

Every image draws settings of its own. ``strength`` 1 is the paper's range and 0 gives the image back; ranges can be
given as well. x: images (B, C, H, W), float in [0, 1]. The orders are the table's.
"""

from __future__ import annotations

from functools import partial

import torch
from torch import Tensor

from holdfast.corruptions.jpeg import Codec, jpeg
from holdfast.corruptions.pixels import (
    gaussian_matrices,
    normal,
    pixel_grid,
    sample,
    separable,
    solve_perspective,
    uniform,
    whole,
)
from holdfast.parts import corruption

Range = tuple[float, float]
GREY = 128 / 255
CELLS = (3, 8)
"""Fewest and most cells per side of the grid that ``dropout`` drops."""

imgaug = partial(corruption, family="imgaug", scale="strength")


@imgaug("gaussian", about="Gaussian noise that the channels of a pixel share", order=31, aliases=("gaussian-noise",))
def gaussian(x: Tensor, *, generator: torch.Generator, strength: float = 1.0, deviation: Range = (0.0, 0.01)) -> Tensor:
    """Gaussian noise of a deviation drawn for every image; the channels of a pixel share it, as in imgaug."""
    scale = uniform((len(x),), *deviation, like=x, generator=generator) * strength
    drawn = normal((len(x), 1, *x.shape[-2:]), like=x, generator=generator)
    return (x + scale[:, None, None, None] * drawn).clamp(0, 1)


@imgaug("salt-and-pepper", about="single pixels nearly black or nearly white", order=32)
def salt_and_pepper(x: Tensor, *, generator: torch.Generator, strength: float = 1.0, share: float = 0.001) -> Tensor:
    """A share of pixels replaced by a grey of Beta(1/2, 1/2): mostly nearly black or nearly white."""
    shape = (len(x), 1, *x.shape[-2:])
    chosen = uniform(shape, 0, 1, like=x, generator=generator) < share * strength
    # sin² of a uniform angle has this distribution
    grey = torch.sin(uniform(shape, 0, torch.pi / 2, like=x, generator=generator)) ** 2
    return torch.where(chosen, grey, x)


@imgaug("cutout", about="two grey squares", order=33)
def cutout(
    x: Tensor, *, generator: torch.Generator, strength: float = 1.0, squares: int = 2, side: float = 0.2
) -> Tensor:
    """Grey squares around uniform places, cut off at the border; their side is a share of the shorter side."""
    height, width = x.shape[-2:]
    length = round(min(side * strength, 1.0) * min(height, width))
    row, column = pixel_grid(x)
    for _ in range(squares):
        place = uniform((2, len(x), 1, 1), 0, 1, like=x, generator=generator)
        top, left = (place[0] * height - length / 2).round(), (place[1] * width - length / 2).round()
        inside = (row >= top) & (row < top + length) & (column >= left) & (column < left + length)
        x = torch.where(inside[:, None], GREY, x)
    return x


@imgaug("dropout", about="black rectangles of a coarse grid", order=34)
def dropout(x: Tensor, *, generator: torch.Generator, strength: float = 1.0, share: Range = (0.0, 0.05)) -> Tensor:
    """Black rectangles: a coarse grid of 3 to 8 cells per side, each cell dropped with the image's own chance."""
    chance = uniform((len(x), 1, 1), *share, like=x, generator=generator) * strength
    low, high = CELLS
    rows, columns = (whole((len(x), 1), low, high + 1, like=x, generator=generator) for _ in range(2))
    dropped = uniform((len(x), high, high), 0, 1, like=x, generator=generator) < chance
    row, column = (torch.arange(side, device=x.device) for side in x.shape[-2:])
    cell = (row * rows // x.shape[-2])[:, :, None] * high + (column * columns // x.shape[-1])[:, None]
    mask = dropped.flatten(1).gather(1, cell.flatten(1)).view(len(x), 1, *x.shape[-2:])
    return torch.where(mask, torch.zeros_like(x), x)


@imgaug("rotation", about="turned by up to 30 degrees", order=35)
def rotation(x: Tensor, *, generator: torch.Generator, strength: float = 1.0, degrees: Range = (-30.0, 30.0)) -> Tensor:
    """Turned around the middle; what comes in is the image mirrored at its border."""
    return rotate(x, uniform((len(x),), *degrees, like=x, generator=generator) * strength)


def rotate(x: Tensor, degrees: Tensor) -> Tensor:
    """Images turned by (B,) degrees, clockwise."""
    angle = torch.deg2rad(degrees)[:, None, None]
    row, column = pixel_grid(x)
    down, right = row - (x.shape[-2] - 1) / 2, column - (x.shape[-1] - 1) / 2
    source_row = -angle.sin() * right + angle.cos() * down + (x.shape[-2] - 1) / 2
    source_column = angle.cos() * right + angle.sin() * down + (x.shape[-1] - 1) / 2
    return sample(x, source_row, source_column, border="symmetric")


@imgaug("perspective", about="seen from an angle: corners pulled outward", order=36)
def perspective(x: Tensor, *, generator: torch.Generator, strength: float = 1.0, scale: Range = (0.05, 0.15)) -> Tensor:
    """Corners move inward by |N(0, s)| of the side, s drawn for every image, and are pulled back to the corners.

    A corner stops short of the middle, so that the four never cross.
    """
    spread = uniform((len(x), 1, 1), *scale, like=x, generator=generator) * strength
    return pull_corners(x, (spread * normal((len(x), 4, 2), like=x, generator=generator)).abs().clamp_max(0.45))


def pull_corners(x: Tensor, inward: Tensor) -> Tensor:
    """The quadrilateral whose corners (upper left, upper right, lower right, lower left) lie (B, 4, 2) shares of
    (width, height) inside the image, stretched over all of it.
    """
    height, width = x.shape[-2:]
    size = torch.tensor([width, height], dtype=x.dtype, device=x.device)
    unit = torch.tensor([[0.0, 0], [1, 0], [1, 1], [0, 1]], dtype=x.dtype, device=x.device)
    quad = (unit + inward * (1 - 2 * unit)) * size
    a, b, c, d, e, f, g, h = solve_perspective((unit * size).expand_as(quad), quad)[:, :, None, None].unbind(1)
    row, column = (at + 0.5 for at in pixel_grid(x))  # corners are pixel edges, not centres
    depth = g * column + h * row + 1
    source_row, source_column = (d * column + e * row + f) / depth, (a * column + b * row + c) / depth
    return sample(x, source_row - 0.5, source_column - 0.5, border="edge")


@imgaug("imgaug-jpeg-compression", about="JPEG compression of low quality", order=37, short="jpeg-compression")
def jpeg_compression(
    x: Tensor,
    *,
    generator: torch.Generator,
    strength: float = 1.0,
    compression: Range = (80.0, 95.0),
    codec: Codec = "auto",
) -> Tensor:
    """True JPEG, of a compression drawn for every image; 0 is the best quality (100), 101 the worst (1).

    A strength under 1 scales the compression; over 1 it divides what is left to 100. On the CPU by Pillow,
    elsewhere by its lossy steps as tensor operations (see jpeg.py).
    """
    if strength == 0:
        return x
    drawn = uniform((len(x),), *compression, like=x, generator=generator)
    drawn = drawn * strength if strength <= 1 else 100 - (100 - drawn) / strength
    return jpeg(x, quality_of(drawn), codec=codec)


def quality_of(compression: Tensor) -> Tensor:
    """imgaug's compression as the quality libjpeg takes.

    >>> quality_of(torch.tensor([80.0, 95.0])).tolist()
    [22, 7]
    """
    return (1 + 99 * (1 - compression / 101)).round().clamp(1, 100).long()


@imgaug("imgaug-gaussian-blur", about="Gaussian blur of 1 to 3 pixels", order=38, short="gaussian-blur")
def gaussian_blur(x: Tensor, *, generator: torch.Generator, strength: float = 1.0, sigma: Range = (1.0, 3.0)) -> Tensor:
    """A Gaussian of a width drawn for every image, on a kernel of about 3.3 σ pixels (odd, at least 5)."""
    return blur(x, uniform((len(x),), *sigma, like=x, generator=generator) * strength)


def blur(x: Tensor, sigma: Tensor) -> Tensor:
    """Images blurred by (B,) pixels with imgaug's kernel sizes; mirrored at the border."""
    factor = torch.where(sigma < 3, 3.3, torch.where(sigma < 5, 2.9, 2.6))
    radius = (factor * sigma).floor().clamp_min(5).div(2, rounding_mode="floor").long()
    return separable(x, *(gaussian_matrices(side, sigma, radius, "mirror") for side in x.shape[-2:]))
