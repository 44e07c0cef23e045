"""ImageNet-C's spatter: drops of water, with a light and a dark side, or of mud. Images (B, 3, H, W) in [0, 1]."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from holdfast.corruptions.imagenet_c import imagenet_c, severities
from holdfast.corruptions.pixels import constant, gaussian, normal

WATER = (175, 238, 238)
MUD = (63, 42, 20)
FARTHEST = 20.0
"""Pixels from the rim of a drop beyond which the distance no longer counts."""
RELIEF = ((-2.0, -1.0, 0.0), (-1.0, 1.0, 1.0), (0.0, 1.0, 2.0))
"""Light from the upper left."""
MOVES = [
    (down, right, length)
    for down in range(-2, 3)
    for right in range(-2, 3)
    if (
        length := {(0, 1): 1.0, (1, 1): 1.4, (1, 2): 2.1969}.get(
            (min(abs(down), abs(right)), max(abs(down), abs(right)))
        )
    )
]
"""Steps of the chamfer distance with a 5x5 mask, straight, diagonal and a knight's, with their lengths."""


SETTINGS = "mean deviation size threshold strength mud"


@imagenet_c("spatter", about="drops of water or mud on the lens", order=15, coloured=True, extra=True)
@severities(
    SETTINGS,
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
