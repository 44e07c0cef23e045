"""JPEG for a batch: Pillow's on the CPU, or its lossy steps as tensor operations on any device.

Only colour conversion, subsampling, and rounding of the DCT change an image; the rest of a codec stores it without
loss and is left out. The tensor form follows libjpeg's integers step by step where they matter: nearly all pixels
agree with Pillow's, the others by a few levels.
"""

from __future__ import annotations

import io
import math
import os
from concurrent.futures import ThreadPoolExecutor
from functools import lru_cache
from typing import Literal

import numpy as np
import torch
import torch.nn.functional as F
from PIL import Image
from torch import Tensor

from holdfast.corruptions.pixels import to_bytes

Codec = Literal["auto", "pillow", "torch"]
"""auto: Pillow for images in the CPU's memory, tensor operations elsewhere."""

LUMINANCE = (
    (16, 11, 10, 16, 24, 40, 51, 61), (12, 12, 14, 19, 26, 58, 60, 55),
    (14, 13, 16, 24, 40, 57, 69, 56), (14, 17, 22, 29, 51, 87, 80, 62),
    (18, 22, 37, 56, 68, 109, 103, 77), (24, 35, 55, 64, 81, 104, 113, 92),
    (49, 64, 78, 87, 103, 121, 120, 101), (72, 92, 95, 98, 112, 100, 103, 99),
)  # fmt: skip
CHROMINANCE = (
    (17, 18, 24, 47, 99, 99, 99, 99), (18, 21, 26, 66, 99, 99, 99, 99),
    (24, 26, 56, 99, 99, 99, 99, 99), (47, 66, 99, 99, 99, 99, 99, 99),
    *(((99,) * 8),) * 4,
)  # fmt: skip
"""Annex K of the standard, at quality 50."""

FORWARD = ((0.299, 0.587, 0.114), (-0.168735892, -0.331264108, 0.5), (0.5, -0.418687589, -0.081312411))
BACKWARD = ((1.0, 0.0, 1.402), (1.0, -0.344136286, -0.714136286), (1.0, 1.772, 0.0))


def jpeg(x: Tensor, quality: Tensor, *, codec: Codec = "auto") -> Tensor:
    """Images (B, 1 or 3, H, W) in [0, 1] after JPEG; quality (B,) whole, 1..100. Colour is
    subsampled by two, as is Pillow's default.
    """
    if codec == "pillow" or (codec == "auto" and x.device.type == "cpu"):
        return _through_pillow(x, quality)
    # a GPU may round factors of float32 products (TF32), which would move the coefficients
    levels = to_bytes(x).to(torch.float64 if x.device.type == "cuda" else torch.float32)
    tables = quantisation(quality.to(x.device)).to(levels.dtype)
    made = _through_dct(levels, tables[:, :1]) if x.shape[1] == 1 else _in_colour(levels, tables)
    return (made / 255).to(x.dtype)


def quantisation(quality: Tensor) -> Tensor:
    """(B, 2, 8, 8) steps that the coefficients of luminance and chrominance are rounded to."""
    quality = quality.to(torch.int64)
    percent = torch.where(quality < 50, 5000 // quality.clamp_min(1), 200 - 2 * quality)
    base = torch.tensor([LUMINANCE, CHROMINANCE], device=quality.device)
    return ((base * percent[:, None, None, None] + 50) // 100).clamp(1, 255).to(torch.float32)


def _in_colour(levels: Tensor, tables: Tensor) -> Tensor:
    height, width = levels.shape[-2:]
    forward = torch.tensor(FORWARD, dtype=levels.dtype, device=levels.device)
    ycc = torch.einsum("ij,bjhw->bihw", forward, levels)
    luma = _through_dct((ycc[:, :1]).round(), tables[:, :1])
    colour = (ycc[:, 1:] + 128).round().clamp(0, 255)
    colour = F.pad(colour, (0, -width % 16, 0, height % 2), mode="replicate")  # rows are padded after halving
    bias = torch.arange(1, 3, device=levels.device).repeat(colour.shape[-1] // 4)
    colour = ((F.avg_pool2d(colour, 2) * 4 + bias) / 4).floor()  # as libjpeg rounds: by turns down and up
    colour = _through_dct(colour, tables[:, 1:])[..., : (height + 1) // 2, : (width + 1) // 2]
    colour = _enlarged(colour)[..., :height, :width] - 128
    backward = torch.tensor(BACKWARD, dtype=levels.dtype, device=levels.device)
    return torch.einsum("ij,bjhw->bihw", backward, torch.cat([luma, colour], 1)).round().clamp(0, 255)


def _through_dct(levels: Tensor, steps: Tensor) -> Tensor:
    """Levels (B, C, H, W), each 8x8 block's coefficients rounded to multiples of their steps (B, 1, 8, 8)."""
    batch, channels, height, width = levels.shape
    padded = F.pad(levels, (0, -width % 8, 0, -height % 8), mode="replicate") - 128
    dct = _dct().to(device=levels.device, dtype=levels.dtype)
    tall, wide = padded.shape[-2] // 8, padded.shape[-1] // 8
    blocks = padded.reshape(batch, channels, tall, 8, wide, 8).transpose(3, 4)
    # Two passes in whole numbers, as libjpeg's: eight times the true coefficients, the first pass four times finer.
    scale = math.sqrt(8)
    coefficients = _whole(dct @ _whole(blocks @ dct.T * (4 * scale)) * (scale / 4))
    steps = steps[:, :, None, None]
    coefficients = coefficients.sign() * ((coefficients.abs() / steps + 4) / 8 + 1e-5).floor() * steps
    columns = _whole(dct.T @ coefficients * (4 * scale))
    back = _whole(columns @ dct * (scale / 32)).transpose(3, 4).reshape(batch, channels, *padded.shape[-2:])
    return (back + 128).clamp(0, 255)[..., :height, :width]


def _whole(values: Tensor) -> Tensor:
    """Rounded, ties upward; the small term decides those that float arithmetic blurs."""
    return (values + (0.5 + 1e-4)).floor()


def _enlarged(half: Tensor) -> Tensor:
    """Twice the side by libjpeg's "fancy" triangle filter: 9, 3, 3 and 1 sixteenths of the four nearest."""
    rows = F.pad(half, (0, 0, 1, 1), mode="replicate")
    sums = torch.stack([3 * half + rows[..., :-2, :], 3 * half + rows[..., 2:, :]], dim=3).flatten(2, 3)
    wide = F.pad(sums, (1, 1, 0, 0), mode="replicate")
    left = ((3 * sums + wide[..., :-2] + 8) / 16).floor()
    return torch.stack([left, ((3 * sums + wide[..., 2:] + 7) / 16).floor()], dim=-1).flatten(-2)


@lru_cache(maxsize=1)
def _dct() -> Tensor:
    k, i = torch.arange(8, dtype=torch.float64)[:, None], torch.arange(8, dtype=torch.float64)
    matrix = torch.cos((2 * i + 1) * k * torch.pi / 16) / 2
    matrix[0] /= math.sqrt(2)
    return matrix


def _through_pillow(x: Tensor, quality: Tensor) -> Tensor:
    pixels = to_bytes(x).cpu().permute(0, 2, 3, 1).contiguous().numpy()
    qualities = quality.int().tolist()
    out = np.empty_like(pixels)

    def part(first: int) -> None:
        for i in range(first, min(first + 64, len(pixels))):
            image, file = pixels[i], io.BytesIO()
            Image.fromarray(image[..., 0] if image.shape[-1] == 1 else image).save(file, "JPEG", quality=qualities[i])
            out[i] = np.asarray(Image.open(file)).reshape(image.shape)

    with ThreadPoolExecutor(max_workers=min(16, os.cpu_count() or 1)) as pool:  # the codec runs beside Python
        list(pool.map(part, range(0, len(pixels), 64)))
    return torch.from_numpy(out).permute(0, 3, 1, 2).to(device=x.device, dtype=x.dtype).contiguous() / 255
