"""Strips of pictures as text, for findings."""

from __future__ import annotations

from typing import Final

from torch import Tensor

from holdfast.png import png

LONGEST: Final = 640
"""Largest width, in pixels, of a strip of pictures."""


def strip(images: Tensor) -> str:
    """uint8 images (N, C, H, W) side by side."""
    n, channels, height, width = images.shape
    return png(images.permute(1, 2, 0, 3).reshape(channels, height, n * width), longest=LONGEST)
