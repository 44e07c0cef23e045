"""Random brightness, contrast, saturation and hue, in batch: what torchvision's ColorJitter does to one image."""

from __future__ import annotations

from typing import Final

import torch
from torch import Tensor

HUE: Final = 3
"""The number of the hue among the four changes; the others are blends with another image."""


def color_jitter(
    x: Tensor,
    *,
    brightness: float = 0.0,
    contrast: float = 0.0,
    saturation: float = 0.0,
    hue: float = 0.0,
    generator: torch.Generator,
) -> Tensor:
    """Float images (n, C, H, W) in [0, 1], each changed by amounts and in an order of its own.

    The first three are factors from max(0, 1 - strength) to 1 + strength; hue is a shift of up to that part of the
    colour circle, at most 0.5. Grey images have neither saturation nor hue.
    """
    n = len(x)
    draws = torch.rand(8, n, device=x.device, generator=generator)
    factors = []
    for strength, draw in zip((brightness, contrast, saturation), draws[:3], strict=True):
        low = max(0.0, 1 - strength)
        factors.append((low + (1 + strength - low) * draw).view(n, 1, 1, 1))
    shift = (hue * (2 * draws[3] - 1)).view(n, 1, 1, 1)
    for kind in draws[4:].argsort(0):
        kind = kind.view(n, 1, 1, 1)
        ratio = torch.where(kind == 0, factors[0], torch.where(kind == 1, factors[1], factors[2]))
        ratio = torch.where(kind == HUE, 1.0, ratio)
        grey = luminance(x)
        other = torch.where(kind == 0, 0.0, torch.where(kind == 1, grey.mean((2, 3), keepdim=True), grey))
        blended = blend(x, other, ratio)
        x = torch.where(kind == HUE, shift_hue(x, shift), blended) if hue and x.shape[1] == 3 else blended
    return x


def blend(x: Tensor, other: Tensor, ratio: Tensor) -> Tensor:
    """ratio · x + (1 - ratio) · other, in [0, 1]."""
    return (x + (other - x) * (1 - ratio)).clamp(0, 1)  # exact where the ratio is 1 or both are the same


def luminance(x: Tensor) -> Tensor:
    """(n, 1, H, W) by the weights of ITU-R 601, which Pillow and torchvision use; a grey image is its own."""
    if x.shape[1] != 3:
        return x
    return 0.2989 * x[:, :1] + 0.587 * x[:, 1:2] + 0.114 * x[:, 2:]


def shift_hue(x: Tensor, shift: Tensor) -> Tensor:
    """Colours turned by a part of the colour circle, with their largest and smallest channel kept.

    >>> shift_hue(torch.tensor([1.0, 0.0, 0.0]).view(1, 3, 1, 1), torch.tensor(1 / 3)).flatten().round().abs()
    tensor([0., 1., 0.])
    """
    red, green, blue = x.unbind(1)
    value, spread = x.amax(1), x.amax(1) - x.amin(1)
    divisor = torch.where(spread == 0, 1.0, spread)
    sixths = torch.where(
        value == red,
        (green - blue) / divisor,
        torch.where(value == green, 2 + (blue - red) / divisor, 4 + (red - green) / divisor),
    )
    sixths = sixths + 6 * shift.reshape(-1, 1, 1)
    places = [(start + sixths) % 6 for start in (5, 3, 1)]
    return torch.stack([value - spread * torch.minimum(place, 4 - place).clamp(0, 1) for place in places], 1)
