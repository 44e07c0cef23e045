"""Textures for frost. Real photographs are not ours to give, so these are grown from noise; a folder of real ones
can be used instead.
"""

from __future__ import annotations

import math
from functools import lru_cache
from pathlib import Path

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from holdfast.corruptions.draw import normal, uniform
from holdfast.corruptions.quantise import to_bytes
from holdfast.corruptions.weather import plasma
from holdfast.errors import HoldfastError, require

COUNT = 5
DIRECTIONS = 6
SMALL = 0.2
"""Real textures are shrunk by this for images under 64 pixels, as they were for CIFAR-10-C."""
SUFFIXES = (".png", ".jpg", ".jpeg")


@lru_cache(maxsize=4)
def grown(side: int) -> Tensor:
    """(COUNT, 3, E, E) textures in [0, 1], E being 128 pixels or more and at least twice the side. Always the same.

    Needles: sparse noise smeared along each of a few directions, each direction in domains of its own; on a bluish
    ground that is denser in some places than in others.
    """
    extent = max(128, 2 << (side - 1).bit_length())
    generator = torch.Generator().manual_seed(2019)
    like = torch.empty(0, dtype=torch.float64)
    density = plasma(COUNT, extent, 2.0, like=like, generator=generator)
    turned = uniform((COUNT,), 0, 180 / DIRECTIONS, like=like, generator=generator).tolist()
    needles = torch.zeros(COUNT, extent, extent, dtype=torch.float64)
    for turn in range(DIRECTIONS):
        domain = plasma(COUNT, extent, 2.0, like=like, generator=generator)
        seeds = (normal(needles.shape, like=like, generator=generator) - 2.2).clamp_min(0) * domain**2
        for k, first in enumerate(turned):
            angle = math.radians(first + 180 / DIRECTIONS * turn)
            for length in (extent // 16, extent // 64):
                needles[k] += _needles(seeds[k], angle, length)
    needles = (needles / needles.flatten(1).quantile(0.98, 1).view(-1, 1, 1)).clamp(0, 1)
    brightness = 0.3 + 0.4 * density + 0.6 * needles * (0.3 + 0.7 * density)
    tint = torch.tensor([0.86, 0.94, 1.0], dtype=torch.float64).view(3, 1, 1)
    return to_bytes(brightness[:, None].clamp(0, 1) * tint).to(torch.float64) / 255


def _needles(seeds: Tensor, angle: float, length: int) -> Tensor:
    """Every point of (E, E) drawn out to a line of at least that length; on a torus, doubling at each step."""
    reach = 1
    while reach < length:
        down, right = round(reach * math.sin(angle)), round(reach * math.cos(angle))
        seeds = seeds + seeds.roll((down, right), (0, 1))
        reach *= 2
    return seeds


def photographed(folder: Path, *, side: int, shrink: bool) -> Tensor:
    """(T, 3, H, W) textures in [0, 1] from the images of a folder, cut to their common size."""
    paths = sorted(p for p in folder.iterdir() if p.suffix.lower() in SUFFIXES) if folder.is_dir() else []
    require(bool(paths), f"no frost textures in {folder}; put PNG or JPEG photographs of frost there")
    textures = []
    for path in paths:
        try:
            image = Image.open(path).convert("RGB")
        except Exception as error:  # on damaged files Pillow raises nearly anything
            raise HoldfastError(f"cannot read the frost texture {path.name}; remove or replace it") from error
        if shrink:
            size = (max(round(image.width * SMALL), 1), max(round(image.height * SMALL), 1))
            image = image.resize(size, Image.Resampling.BILINEAR)
        require(
            min(image.size) > side,
            f"frost texture {path.name} is {image.width}x{image.height} pixels"
            f"{' once shrunk to a fifth' if shrink else ''}; images of {side} need a larger one",
        )
        textures.append(torch.from_numpy(np.array(image)).permute(2, 0, 1))
    height, width = (min(t.shape[i] for t in textures) for i in (1, 2))
    return torch.stack([t[:, :height, :width] for t in textures]).to(torch.float64) / 255
