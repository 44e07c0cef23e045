"""Weather: snow, frost, fog, brightness. x: images (B, C, H, W) in [0, 1]."""

from __future__ import annotations

import torch
from torch import Tensor

from holdfast.corruptions.blur import smear
from holdfast.corruptions.colour import luminance
from holdfast.corruptions.draw import normal, uniform, whole
from holdfast.corruptions.linear import zoom
from holdfast.corruptions.quantise import truncate_to_bytes


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


def frost(x: Tensor, *, keep: float, cover: float, textures: Tensor, generator: torch.Generator) -> Tensor:
    """keep · x + cover · a random part of a random texture (T, C, H', W'), larger than the image."""
    height, width = x.shape[-2:]
    room = [max(side - own, 1) for side, own in zip(textures.shape[-2:], (height, width), strict=True)]
    which = whole((len(x),), 0, len(textures), like=x, generator=generator)
    top, left = (whole((len(x),), 0, free, like=x, generator=generator) for free in room)
    row = top[:, None, None] + torch.arange(height, device=x.device)[:, None]
    column = left[:, None, None] + torch.arange(width, device=x.device)
    ice = textures.to(device=x.device, dtype=x.dtype)[which[:, None, None], :, row, column].permute(0, 3, 1, 2)
    return (keep * x + cover * ice).clamp(0, 1)


def fog(x: Tensor, *, density: float, decay: float, generator: torch.Generator) -> Tensor:
    """A plasma added, and the whole brought back under the brightest value there was."""
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


def brightness(x: Tensor, *, add: float) -> Tensor:
    """The value of the HSV form raised; hue and saturation stay. Black becomes grey."""
    value = x.amax(1, keepdim=True)
    raised = (value + add).clamp(0, 1)
    return torch.where(value > 0, x * (raised / value.clamp_min(1e-12)), raised).clamp(0, 1)
