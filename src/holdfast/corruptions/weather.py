"""ImageNet-C's weather: snow, frost and fog. x: images (B, C, H, W) in [0, 1].

The published photographs of frost are not ours to distribute, so textures are grown from noise; a folder of real ones
can be used instead.
"""

from __future__ import annotations

import math
from functools import lru_cache
from pathlib import Path

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from holdfast.corruptions.blur import smear
from holdfast.corruptions.imagenet_c import imagenet_c, severities
from holdfast.corruptions.pixels import luminance, normal, to_bytes, truncate_to_bytes, uniform, whole, zoom
from holdfast.errors import HoldfastError, require

SNOW = "mean deviation size threshold radius sigma keep"

COUNT = 5
DIRECTIONS = 6
SMALL = 0.2
"""Real textures are shrunk by this for images under 64 pixels, as they were for CIFAR-10-C."""
SUFFIXES = (".png", ".jpg", ".jpeg")


@imagenet_c("snow", about="falling snow", order=10)
@severities(
    SNOW,
    cifar=(
        (0.1, 0.2, 1, 0.6, 8, 3, 0.95),
        (0.1, 0.2, 1, 0.5, 10, 4, 0.9),
        (0.15, 0.3, 1.75, 0.55, 10, 4, 0.9),
        (0.25, 0.3, 2.25, 0.6, 12, 6, 0.85),
        (0.3, 0.3, 1.25, 0.65, 14, 12, 0.8),
    ),
    imagenet=(
        (0.1, 0.3, 3, 0.5, 10, 4, 0.8),
        (0.2, 0.3, 2, 0.5, 12, 4, 0.7),
        (0.55, 0.3, 4, 0.9, 12, 8, 0.7),
        (0.55, 0.3, 4.5, 0.85, 12, 8, 0.65),
        (0.55, 0.3, 2.5, 0.85, 12, 12, 0.55),
    ),
)
def snow(
    x: Tensor,
    *,
    mean: float,
    deviation: float,
    size: float,
    threshold: float,
    radius: int,
    sigma: float,
    keep: float,
    generator: torch.Generator,
) -> Tensor:
    """Flakes, magnified by ``size`` and blown sideways, over an image whitened by 1 - keep."""
    layer = mean + deviation * normal((len(x), 1, *x.shape[-2:]), like=x, generator=generator)
    degrees = uniform((len(x),), -135, -45, like=x, generator=generator)
    flakes = snowflakes(layer, degrees, size=size, threshold=threshold, radius=radius, sigma=sigma)
    whitened = torch.maximum(x, luminance(x) * 1.5 + 0.5)
    return (keep * x + (1 - keep) * whitened + flakes + flakes.rot90(2, (2, 3))).clamp(0, 1)


def snowflakes(layer: Tensor, degrees: Tensor, *, size: float, threshold: float, radius: int, sigma: float) -> Tensor:
    """Noise (B, 1, H, W) above a threshold, smeared along the wind."""
    layer = zoom(layer, size)
    layer = torch.where(layer < threshold, torch.zeros_like(layer), layer)
    return smear(truncate_to_bytes(layer.clamp(0, 1)), degrees, radius=radius, sigma=sigma)


@imagenet_c(
    "frost",
    about="ice on the lens",
    order=11,
    coloured=True,
    files="photographs of frost (frost_folder); without them textures are grown from noise",
)
@severities(
    "keep cover",
    cifar=((1, 0.2), (1, 0.3), (0.9, 0.4), (0.85, 0.4), (0.75, 0.45)),
    imagenet=((1, 0.4), (0.8, 0.6), (0.7, 0.7), (0.65, 0.7), (0.6, 0.75)),
)
def frost(
    x: Tensor,
    *,
    keep: float,
    cover: float,
    generator: torch.Generator,
    frost_folder: str | Path | None = None,
    large: bool = False,
) -> Tensor:
    """keep · x + cover · a random part of a random texture, which is larger than the image."""
    height, width = x.shape[-2:]
    longer = max(height, width)
    textures = (
        grown(longer) if frost_folder is None else photographed(Path(frost_folder), side=longer, shrink=not large)
    )
    room = [max(side - own, 1) for side, own in zip(textures.shape[-2:], (height, width), strict=True)]
    which = whole((len(x),), 0, len(textures), like=x, generator=generator)
    top, left = (whole((len(x),), 0, free, like=x, generator=generator) for free in room)
    row = top[:, None, None] + torch.arange(height, device=x.device)[:, None]
    column = left[:, None, None] + torch.arange(width, device=x.device)
    ice = textures.to(device=x.device, dtype=x.dtype)[which[:, None, None], :, row, column].permute(0, 3, 1, 2)
    return (keep * x + cover * ice).clamp(0, 1)


@imagenet_c("fog", about="fog of uneven density", order=12)
@severities(
    "density decay",
    cifar=((0.2, 3), (0.5, 3), (0.75, 2.5), (1, 2), (1.5, 1.75)),
    imagenet=((1.5, 2), (2, 2), (2.5, 1.7), (2.5, 1.5), (3, 1.4)),
)
def fog(x: Tensor, *, density: float, decay: float, generator: torch.Generator) -> Tensor:
    """A plasma cloud added, and the sum scaled so that the brightest value stays the same."""
    side = max(32, 1 << (max(x.shape[-2:]) - 1).bit_length())
    cloud = plasma(len(x), side, decay, like=x, generator=generator)[:, None, : x.shape[-2], : x.shape[-1]]
    brightest = x.amax((1, 2, 3), keepdim=True)
    return ((x + density * cloud) * brightest / (brightest + density)).clamp(0, 1)


def plasma(count: int, side: int, decay: float, *, like: Tensor, generator: torch.Generator) -> Tensor:
    """(count, side, side) clouds in [0, 1] by the diamond-square method on a torus; side is a power of two.

    Every point is the mean of four neighbours plus noise, whose amplitude (squared, as published) falls by
    decay² from one scale to the next.
    """
    cloud = torch.zeros(count, side, side, dtype=like.dtype, device=like.device)
    step, amplitude = side, 100.0
    while step >= 2:
        half = step // 2

        def jittered(total: Tensor, amplitude: float = amplitude) -> Tensor:
            noise = uniform(total.shape, -amplitude, amplitude, like=like, generator=generator)
            return total / 4 + amplitude * noise

        corner = cloud[:, ::step, ::step]
        pair = corner + corner.roll(-1, 1)
        cloud[:, half::step, half::step] = jittered(pair + pair.roll(-1, 2))
        middle, corner = cloud[:, half::step, half::step], cloud[:, ::step, ::step]
        above = middle + middle.roll(1, 1) + corner + corner.roll(-1, 2)
        cloud[:, ::step, half::step] = jittered(above)
        beside = middle + middle.roll(1, 2) + corner + corner.roll(-1, 1)
        cloud[:, half::step, ::step] = jittered(beside)
        step, amplitude = half, amplitude / decay
    cloud -= cloud.amin((1, 2), keepdim=True)
    return cloud / cloud.amax((1, 2), keepdim=True)


@lru_cache(maxsize=4)
def grown(side: int) -> Tensor:
    """(COUNT, 3, E, E) textures in [0, 1], E being 128 pixels or more and at least twice the side. Always the same.

    Needles: sparse noise smeared along each of a few directions, each direction in domains of its own; on a bluish
    ground that is denser in some places than in others.
    """
    extent = max(128, 2 << (side - 1).bit_length())
    generator = torch.Generator().manual_seed(2019)
    like = torch.empty(0, dtype=torch.float64)
    density = plasma(COUNT, extent, 2.0, like=like, generator=generator)
    turned = uniform((COUNT,), 0, 180 / DIRECTIONS, like=like, generator=generator).tolist()
    needles = torch.zeros(COUNT, extent, extent, dtype=torch.float64)
    for turn in range(DIRECTIONS):
        domain = plasma(COUNT, extent, 2.0, like=like, generator=generator)
        seeds = (normal(needles.shape, like=like, generator=generator) - 2.2).clamp_min(0) * domain**2
        for k, first in enumerate(turned):
            angle = math.radians(first + 180 / DIRECTIONS * turn)
            for length in (extent // 16, extent // 64):
                needles[k] += _needles(seeds[k], angle, length)
    needles = (needles / needles.flatten(1).quantile(0.98, 1).view(-1, 1, 1)).clamp(0, 1)
    brightness = 0.3 + 0.4 * density + 0.6 * needles * (0.3 + 0.7 * density)
    tint = torch.tensor([0.86, 0.94, 1.0], dtype=torch.float64).view(3, 1, 1)
    return to_bytes(brightness[:, None].clamp(0, 1) * tint).to(torch.float64) / 255


def _needles(seeds: Tensor, angle: float, length: int) -> Tensor:
    """Every point of (E, E) drawn out to a line of at least that length; on a torus, doubling at each step."""
    reach = 1
    while reach < length:
        down, right = round(reach * math.sin(angle)), round(reach * math.cos(angle))
        seeds = seeds + seeds.roll((down, right), (0, 1))
        reach *= 2
    return seeds


def photographed(folder: Path, *, side: int, shrink: bool) -> Tensor:
    """(T, 3, H, W) textures in [0, 1] from the images of a folder, cut to their common size."""
    paths = sorted(p for p in folder.iterdir() if p.suffix.lower() in SUFFIXES) if folder.is_dir() else []
    require(bool(paths), f"no frost textures in {folder}; put PNG or JPEG photographs of frost there")
    textures = []
    for path in paths:
        try:
            image = Image.open(path).convert("RGB")
        except Exception as error:  # on damaged files Pillow raises nearly anything
            raise HoldfastError(f"cannot read the frost texture {path.name}; remove or replace it") from error
        if shrink:
            size = (max(round(image.width * SMALL), 1), max(round(image.height * SMALL), 1))
            image = image.resize(size, Image.Resampling.BILINEAR)
        require(
            min(image.size) > side,
            f"frost texture {path.name} is {image.width}x{image.height} pixels"
            f"{' once shrunk to a fifth' if shrink else ''}; images of {side} need a larger one",
        )
        textures.append(torch.from_numpy(np.array(image)).permute(2, 0, 1))
    height, width = (min(t.shape[i] for t in textures) for i in (1, 2))
    return torch.stack([t[:, :height, :width] for t in textures]).to(torch.float64) / 255
