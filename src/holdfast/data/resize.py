"""Bring images that lie in memory to another size."""

from __future__ import annotations

import os
import sys

import torch
from torch import Tensor
from torch.nn.functional import interpolate

from holdfast.errors import require

CHUNK = 1024
"""Images resized at a time, so that the float copy stays small."""


def resize(images: Tensor, side: int) -> Tensor:
    """Images (N, C, H, W), uint8 or float in [0, 255], as uint8 (N, C, side, side).

    The centre square is kept, as for files; bilinear, antialiased when shrinking.
    """
    n, channels, height, width = images.shape
    needed = n * channels * side * side
    require(
        needed < _memory(),
        f"image_size {side} makes {n} images {needed / 2**30:.0f} GiB, more than this machine's memory; "
        "choose a smaller image_size",
    )
    short = min(height, width)
    top, left = (height - short) // 2, (width - short) // 2
    square = images[:, :, top : top + short, left : left + short]
    if short == side and images.dtype == torch.uint8:
        return square.contiguous()
    out = torch.empty(n, channels, side, side, dtype=torch.uint8)
    for start in range(0, n, CHUNK):
        chunk = square[start : start + CHUNK].float()
        fitted = interpolate(chunk, size=(side, side), mode="bilinear", antialias=True)
        out[start : start + CHUNK] = fitted.round().clamp(0, 255).to(torch.uint8)
    return out


def _memory() -> int:
    """Bytes of memory this machine has; no bound where the system does not say."""
    if not hasattr(os, "sysconf"):
        return sys.maxsize
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
