"""Small pictures as text, for findings."""

from __future__ import annotations

import base64
import io
from typing import Any

import numpy as np
from PIL import Image
from torch import Tensor

LONGEST = 640
"""Largest width, in pixels, of a strip of pictures."""


def png(image: Tensor) -> str:
    """A uint8 image (C, H, W) as base64 PNG."""
    pixels: Any = image.squeeze(0).numpy() if image.shape[0] == 1 else image.permute(1, 2, 0).numpy()
    file = io.BytesIO()
    picture = Image.fromarray(np.ascontiguousarray(pixels))
    picture.thumbnail((LONGEST, LONGEST))
    picture.save(file, format="PNG")
    return base64.b64encode(file.getvalue()).decode("ascii")


def strip(images: Tensor) -> str:
    """uint8 images (N, C, H, W) side by side."""
    n, channels, height, width = images.shape
    return png(images.permute(1, 2, 0, 3).reshape(channels, height, n * width))
