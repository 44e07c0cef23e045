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


def resize(images: Tensor, size: int | tuple[int, int]) -> Tensor:
    """Images (N, C, H, W), uint8 or float in [0, 255], as uint8 of this size: a side, or (height, width).

    The largest part at the centre that has these proportions is kept, as for files; bilinear, antialiased when
    shrinking.
    """
    n, channels, height, width = images.shape
    tall, wide = (size, size) if isinstance(size, int) else size
    needed = n * channels * tall * wide
    require(
        needed < _memory(),
        f"image_size {size} makes {n} images {needed / 2**30:.0f} GiB, more than this machine's memory; "
        "choose a smaller image_size",
    )
    scale = min(height / tall, width / wide)
    kept_tall, kept_wide = max(1, round(scale * tall)), max(1, round(scale * wide))
    top, left = (height - kept_tall) // 2, (width - kept_wide) // 2
    kept = images[:, :, top : top + kept_tall, left : left + kept_wide]
    if kept.shape[2:] == (tall, wide) and images.dtype == torch.uint8:
        return kept.contiguous()
    out = torch.empty(n, channels, tall, wide, dtype=torch.uint8)
    for start in range(0, n, CHUNK):
        chunk = kept[start : start + CHUNK].float()
        fitted = interpolate(chunk, size=(tall, wide), mode="bilinear", antialias=True)
        out[start : start + CHUNK] = fitted.round().clamp(0, 255).to(torch.uint8)
    return out


def _memory() -> int:
    """Bytes of memory this machine has; no bound where the system does not say."""
    if not hasattr(os, "sysconf"):
        return sys.maxsize
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
