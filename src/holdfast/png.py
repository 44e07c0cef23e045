"""Images as base64 PNG text, for findings and reports."""

from __future__ import annotations

import base64
import io
from typing import Any, Final

import numpy as np
from PIL import Image
from torch import Tensor

THUMBNAIL: Final = 96
"""Longest side of a thumbnail, in pixels."""


def png(image: Tensor, *, longest: int = THUMBNAIL) -> str:
    """A uint8 image (C, H, W) as base64 PNG, neither side longer than ``longest``."""
    pixels: Any = image.squeeze(0).numpy() if image.shape[0] == 1 else image.permute(1, 2, 0).numpy()
    picture = Image.fromarray(np.ascontiguousarray(pixels))
    picture.thumbnail((longest, longest))
    file = io.BytesIO()
    picture.save(file, format="PNG", optimize=True)
    return base64.b64encode(file.getvalue()).decode("ascii")
