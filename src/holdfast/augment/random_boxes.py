"""Random boxes in a batch: random resized crop and random erasing, drawn as torchvision draws them.

Everything is drawn for the whole batch at once and stays on the device, so that both can be part of a CUDA graph.
"""

from __future__ import annotations

import math
from typing import Final, NamedTuple

import torch
from torch import Tensor

from holdfast.augment.mixing import covered

ATTEMPTS: Final = 10
"""Boxes drawn for each image; the first that fits is taken. As many as torchvision tries."""
CROP_RATIO: Final = (3 / 4, 4 / 3)
"""Width over height of a crop: those of torchvision, as are the following."""
ERASED_AREA: Final = (0.02, 0.33)
ERASED_RATIO: Final = (1 / 3.3, 1 / 0.3)


class Boxes(NamedTuple):
    """One box per image: (n, 1) each, in pixels. found: whether one of the attempts fitted."""

    top: Tensor
    left: Tensor
    height: Tensor
    width: Tensor
    found: Tensor


def draw_boxes(
    n: int,
    sides: tuple[int, int],
    *,
    area: tuple[float, float],
    ratio: tuple[float, float],
    generator: torch.Generator,
    device: torch.device,
    whole: bool = True,
) -> Boxes:
    """Boxes whose share of the area is uniform, and whose width over height is log-uniform.

    sides: height and width of the images. whole: whether a box may be as high or as wide as the image.

    >>> boxes = draw_boxes(
    ...     2, (8, 8), area=(0.25, 0.25), ratio=(1, 1), generator=torch.Generator(), device=torch.device("cpu")
    ... )
    >>> boxes.height.tolist(), boxes.width.tolist()
    ([[4.0], [4.0]], [[4.0], [4.0]])
    """
    rows, columns = sides
    share, aspect = torch.rand(2, ATTEMPTS, n, device=device, generator=generator)
    target = rows * columns * (area[0] + (area[1] - area[0]) * share)
    low, high = map(math.log, ratio)
    aspect = torch.exp(low + (high - low) * aspect)
    width, height = (target * aspect).sqrt().round(), (target / aspect).sqrt().round()
    fits = (width > 0) & (height > 0) & (width <= columns - (not whole)) & (height <= rows - (not whole))
    first = fits.int().argmax(0, keepdim=True)
    height, width = height.gather(0, first)[0], width.gather(0, first)[0]
    down, right = torch.rand(2, n, device=device, generator=generator)
    top, left = (down * (rows - height + 1)).floor(), (right * (columns - width + 1)).floor()
    return Boxes(*(part[:, None] for part in (top, left, height, width, fits.any(0))))


def central_crop(sides: tuple[int, int], ratio: tuple[float, float]) -> tuple[int, int, int, int]:
    """(top, left, height, width) of the largest central crop with an allowed width over height.

    >>> central_crop((10, 40), (0.75, 1.5))
    (0, 12, 10, 15)
    """
    height, width = sides
    if width / height < ratio[0]:
        height = round(width / ratio[0])
    elif width / height > ratio[1]:
        width = round(height * ratio[1])
    return (sides[0] - height) // 2, (sides[1] - width) // 2, height, width


def random_resized_crop(
    x: Tensor, *, area: float, ratio: tuple[float, float] = CROP_RATIO, generator: torch.Generator
) -> Tensor:
    """A part of each image (n, C, H, W), at least ``area`` of it, brought back to (H, W).

    As torchvision's RandomResizedCrop with scale (area, 1), bilinear: a crop is never larger than the image, so there
    is nothing to anti-alias.
    """
    sides = (x.shape[2], x.shape[3])
    drawn = draw_boxes(len(x), sides, area=(area, 1.0), ratio=ratio, generator=generator, device=x.device)
    fixed = central_crop(sides, ratio)
    parts = [torch.where(drawn.found, part, value) for part, value in zip(drawn[:4], fixed, strict=True)]
    return resized(x, *parts)


def resized(x: Tensor, top: Tensor, left: Tensor, height: Tensor, width: Tensor) -> Tensor:
    """A box of each float image (n, C, H, W), resized to (H, W) bilinearly. top, left, height, width: (n, 1)."""
    for axis, start, length in ((2, top, height), (3, left, width)):
        size = x.shape[axis]
        at = ((torch.arange(size, device=x.device) + 0.5) * (length / size) - 0.5).clamp_min(0)
        below = torch.minimum(at.floor(), length - 1)
        above = torch.minimum(below + 1, length - 1)
        shape = (len(x), 1, -1, 1) if axis == 2 else (len(x), 1, 1, -1)
        first, second = ((start + place).long().view(shape).expand_as(x) for place in (below, above))
        x = torch.lerp(x.gather(axis, first), x.gather(axis, second), (at - below).view(shape).to(x.dtype))
    return x


def random_erasing(x: Tensor, *, p: float, fill: Tensor, generator: torch.Generator) -> Tensor:
    """With probability ``p`` a box of 2 to 33 % of an image is set to ``fill`` (C,) (Zhong et al., 2020)."""
    sides = (x.shape[2], x.shape[3])
    options = {"area": ERASED_AREA, "ratio": ERASED_RATIO, "whole": False}
    box = draw_boxes(len(x), sides, generator=generator, device=x.device, **options)  # type: ignore[arg-type]
    chosen = (torch.rand(len(x), 1, device=x.device, generator=generator) < p) & box.found
    rows, columns = covered(box.top, box.height, sides[0]) & chosen, covered(box.left, box.width, sides[1])
    return torch.where((rows[:, :, None] & columns[:, None])[:, None], fill[:, None, None], x)
