"""ImageNet-C's weather: snow, frost, fog, and spatter of water or mud. x: images (B, C, H, W) in [0, 1].

The published photographs of frost are not ours to distribute, so textures are grown from noise; a folder of real ones
can be used instead.
"""

from __future__ import annotations

import math
from functools import lru_cache
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from PIL import Image
from torch import Tensor

from holdfast.corruptions.blur import smear
from holdfast.corruptions.imagenet_c import imagenet_c, severities
from holdfast.corruptions.pixels import (
    constant,
    gaussian,
    luminance,
    normal,
    to_bytes,
    truncate_to_bytes,
    uniform,
    whole,
    zoom,
)
from holdfast.errors import HoldfastError, require
from holdfast.files import status

COUNT = 5
DIRECTIONS = 6
SMALL = 0.2
"""Real textures are shrunk by this for images under 64 pixels, as they were for CIFAR-10-C."""
SUFFIXES = (".png", ".jpg", ".jpeg")


@imagenet_c("snow", about="falling snow", order=10)
@severities(
    "mean deviation size threshold radius sigma keep",
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
    """Flakes (noise above a threshold), magnified by ``size`` and blown sideways, over an image whitened by 1-keep."""
    layer = mean + deviation * normal((len(x), 1, *x.shape[-2:]), like=x, generator=generator)
    degrees = uniform((len(x),), -135, -45, like=x, generator=generator)
    layer = zoom(layer, size)
    layer = torch.where(layer < threshold, torch.zeros_like(layer), layer)
    flakes = smear(truncate_to_bytes(layer.clamp(0, 1)), degrees, radius=radius, sigma=sigma)
    whitened = torch.maximum(x, luminance(x) * 1.5 + 0.5)
    return (keep * x + (1 - keep) * whitened + flakes + flakes.rot90(2, (2, 3))).clamp(0, 1)


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
    most = max(height, width)
    textures = grown(most) if frost_folder is None else photographed(Path(frost_folder), side=most, shrink=not large)
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
            return total / 4 + amplitude * uniform(total.shape, -amplitude, amplitude, like=like, generator=generator)

        corner = cloud[:, ::step, ::step]
        pair = corner + corner.roll(-1, 1)
        cloud[:, half::step, half::step] = jittered(pair + pair.roll(-1, 2))
        middle, corner = cloud[:, half::step, half::step], cloud[:, ::step, ::step]
        cloud[:, ::step, half::step] = jittered(middle + middle.roll(1, 1) + corner + corner.roll(-1, 2))
        cloud[:, half::step, ::step] = jittered(middle + middle.roll(1, 2) + corner + corner.roll(-1, 1))
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
            status(path)
            image = Image.open(path, formats=("PNG", "JPEG")).convert("RGB")
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


WATER = (175, 238, 238)
MUD = (63, 42, 20)
FARTHEST = 20.0
"""Pixels from the rim of a drop beyond which the distance no longer counts."""
RELIEF = ((-2.0, -1.0, 0.0), (-1.0, 1.0, 1.0), (0.0, 1.0, 2.0))
"""Light from the upper left."""
LENGTHS = {1: 1.0, 2: 1.4, 5: 2.1969}
"""Steps of the chamfer distance with a 5x5 mask, straight, diagonal and a knight's: lengths by true squares."""
MOVES = [(i, j, LENGTHS[i * i + j * j]) for i in range(-2, 3) for j in range(-2, 3) if i * i + j * j in LENGTHS]


@imagenet_c("spatter", about="drops of water or mud on the lens", order=15, coloured=True, extra=True)
@severities(
    "mean deviation size threshold strength mud",
    cifar=(
        (0.62, 0.1, 0.7, 0.7, 0.5, False),
        (0.65, 0.1, 0.8, 0.7, 0.5, False),
        (0.65, 0.3, 1, 0.69, 0.5, False),
        (0.65, 0.1, 0.7, 0.69, 0.6, True),
        (0.65, 0.1, 0.5, 0.68, 0.6, True),
    ),
    imagenet=(
        (0.65, 0.3, 4, 0.69, 0.6, False),
        (0.65, 0.3, 3, 0.68, 0.6, False),
        (0.65, 0.3, 2, 0.68, 0.5, False),
        (0.65, 0.3, 1, 0.65, 1.5, True),
        (0.67, 0.4, 1, 0.65, 1.5, True),
    ),
)
def spatter(
    x: Tensor,
    *,
    mean: float,
    deviation: float,
    size: float,
    threshold: float,
    strength: float,
    mud: bool,
    generator: torch.Generator,
) -> Tensor:
    """Smoothed noise above a threshold is liquid.

    strength: how bright water gets; for mud, how far its mask is smoothed, in pixels.
    """
    layer = mean + deviation * normal((len(x), 1, *x.shape[-2:]), like=x, generator=generator)
    layer = gaussian(layer, size)
    layer = torch.where(layer < threshold, torch.zeros_like(layer), layer)
    if mud:
        mask = gaussian((layer > threshold).to(x.dtype), strength)
        mask = torch.where(mask < 0.8, torch.zeros_like(mask), mask)
        return (x * (1 - mask) + mask * constant(MUD, x)).clamp(0, 1)
    return (x + strength * water(layer) * constant(WATER, x)).clamp(0, 1)


def water(layer: Tensor) -> Tensor:
    """How much light drops add, 0..1, from the height (B, 1, H, W) of the liquid. Whole levels, as published."""
    height = (layer * 255 + 1e-4).floor().clamp(0, 255)
    rim = (box(chamfer(edges(height)).to(layer.dtype)) + 1e-4).floor()
    relief = _filter(equalised(rim), torch.tensor(RELIEF, dtype=layer.dtype, device=layer.device), "reflect")
    light = box(relief.round().clamp(0, 255)).round() * height
    return light / light.amax((1, 2, 3), keepdim=True).clamp_min(1e-12)


def edges(image: Tensor, *, low: float = 50, high: float = 150) -> Tensor:
    """Canny's edges of levels (B, 1, H, W) in 0..255: thin ridges of the Sobel gradient (its L1 norm) above
    ``low`` that hang together with some above ``high``.
    """
    smooth, slope = torch.tensor([1.0, 2, 1], dtype=image.dtype), torch.tensor([-1.0, 0, 1], dtype=image.dtype)
    across = _filter(image, torch.outer(smooth, slope).to(image.device), "replicate")
    along = _filter(image, torch.outer(slope, smooth).to(image.device), "replicate")
    strength = across.abs() + along.abs()
    padded = F.pad(strength, (1, 1, 1, 1))

    def beside(down: int, right: int) -> Tensor:
        return _shifted(padded, down, right, 1)

    flat = along.abs() < across.abs() * 0.41421356  # tan 22.5°
    steep = along.abs() > across.abs() * 2.41421356
    ridge_flat = (strength > beside(0, -1)) & (strength >= beside(0, 1))
    ridge_steep = (strength > beside(-1, 0)) & (strength >= beside(1, 0))
    ridge_down = (strength > beside(-1, -1)) & (strength > beside(1, 1))
    ridge_up = (strength > beside(-1, 1)) & (strength > beside(1, -1))
    diagonal = torch.where((across < 0) != (along < 0), ridge_up, ridge_down)
    ridge = torch.where(flat, ridge_flat, torch.where(steep, ridge_steep, diagonal)) & (strength > low)
    found = ridge & (strength > high)
    while True:
        grown = (F.max_pool2d(found.to(image.dtype), 3, stride=1, padding=1) > 0) & ridge
        if torch.equal(grown, found):
            return found
        found = grown


def chamfer(marked: Tensor) -> Tensor:
    """Distance (B, 1, H, W) of every pixel to the nearest marked one, at most FARTHEST."""
    distance = torch.where(marked, 0.0, FARTHEST)
    for _ in range(int(FARTHEST)):
        padded = F.pad(distance, (2, 2, 2, 2), value=FARTHEST)
        nearer = distance
        for down, right, length in MOVES:
            nearer = torch.minimum(nearer, _shifted(padded, down, right, 2) + length)
        if torch.equal(nearer, distance):
            break
        distance = nearer
    return distance


def equalised(levels: Tensor) -> Tensor:
    """Whole levels 0..255 (B, 1, H, W) spread so that all are about equally frequent, the lowest being 0."""
    batch, total = len(levels), levels[0].numel()
    flat = levels.long().flatten(1)
    count = torch.zeros(batch, 256, dtype=torch.int64, device=levels.device)
    count.scatter_add_(1, flat, torch.ones_like(flat))
    first = count.gather(1, flat.amin(1, keepdim=True))
    spread = (count.cumsum(1) - first) * (255 / (total - first).clamp_min(1))
    spread = torch.where(first.eq(total), torch.arange(256, device=levels.device), spread.round())
    return spread.gather(1, flat).view(levels.shape).to(levels.dtype)


def box(image: Tensor) -> Tensor:
    """Mean over 3x3 pixels, mirrored at the border."""
    return F.avg_pool2d(F.pad(image, (1, 1, 1, 1), mode="reflect"), 3, stride=1)


def _filter(image: Tensor, kernel: Tensor, border: str) -> Tensor:
    return F.conv2d(F.pad(image, (1, 1, 1, 1), mode=border), kernel[None, None])


def _shifted(padded: Tensor, down: int, right: int, pad: int) -> Tensor:
    height, width = padded.shape[-2] - 2 * pad, padded.shape[-1] - 2 * pad
    return padded[..., pad + down : pad + down + height, pad + right : pad + right + width]
