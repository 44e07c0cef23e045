"""Digital: contrast, saturate, pixelate, and JPEG. x: images (B, C, H, W) in [0, 1]."""

from __future__ import annotations

import torch
from torch import Tensor

from holdfast.corruptions.jpeg import Codec, jpeg
from holdfast.corruptions.linear import box_matrix, separable


def contrast(x: Tensor, *, factor: float) -> Tensor:
    """Every channel drawn toward its own mean."""
    mean = x.mean((2, 3), keepdim=True)
    return ((x - mean) * factor + mean).clamp(0, 1)


def saturate(x: Tensor, *, factor: float, add: float) -> Tensor:
    """The saturation of the HSV form scaled and raised; hue and value stay. Grey has the hue of red."""
    value = x.amax(1, keepdim=True)
    missing = value - x
    saturation = missing.amax(1, keepdim=True) / value.clamp_min(1e-12)
    wanted = (saturation * factor + add).clamp(0, 1)
    red = value * torch.tensor([0.0, 1.0, 1.0], dtype=x.dtype, device=x.device).view(3, 1, 1)
    share = torch.where(saturation > 0, missing / saturation.clamp_min(1e-12), red)
    return (value - share * wanted).clamp(0, 1)


def pixelate(x: Tensor, *, factor: float) -> Tensor:
    """Shrunk by a box filter and enlarged again."""
    small = [int(side * factor) for side in x.shape[-2:]]
    down = [box_matrix(side, to) for side, to in zip(x.shape[-2:], small, strict=True)]
    up = [box_matrix(to, side) for side, to in zip(x.shape[-2:], small, strict=True)]
    rows, columns = (enlarge @ shrink for enlarge, shrink in zip(up, down, strict=True))
    return separable(x, rows, columns)


def jpeg_compression(x: Tensor, *, quality: int, codec: Codec = "auto") -> Tensor:
    """Written as JPEG of a quality in 1..100 and read again."""
    return jpeg(x, torch.full((len(x),), quality), codec=codec)
