"""Augmentation of whole batches on their device: what ``holdfast train`` does to images; weak and strong changes for
FixMatch."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor

from holdfast.augment.auto_augment import AutoAugment, color_jitter
from holdfast.augment.mixing import covered
from holdfast.augment.random_boxes import random_erasing, random_resized_crop
from holdfast.errors import require
from holdfast.settings import AugmentSettings


def to_float(x: Tensor) -> Tensor:
    """uint8 pixels as float in [0, 1]."""
    return x.float().div_(255)


class Augment:
    """Turns uint8 batches into augmented float training images in [0, 1].

    shape: (C, H, W) of the images. mean: (C,) colour that what is cut out or erased is filled with; it must already be
    on the device, because a CUDA graph cannot fetch it from the host.
    """

    def __init__(self, settings: AugmentSettings, shape: tuple[int, int, int], mean: Tensor) -> None:
        side = min(shape[1:])
        require(settings.crop <= side, f"crop ({settings.crop}) cannot exceed the image side ({side})")
        require(settings.cutout <= 2 * side, f"cutout ({settings.cutout}) is larger than the image ({side})")
        self.settings, self.mean = settings, mean
        self.auto: AutoAugment | None = None
        if settings.auto_augment != "none":
            strength = {"ops": settings.rand_ops, "magnitude": settings.rand_magnitude}
            self.auto = AutoAugment(settings.auto_augment, shape, **strength, device=mean.device)

    def __call__(self, x: Tensor, generator: torch.Generator) -> Tensor:
        s = self.settings
        if s.resized_crop:
            x = random_resized_crop(to_float(x), area=s.resized_crop, generator=generator)
        if s.crop or s.flip:
            x = crop_and_flip(x, pad=s.crop, flip=s.flip, generator=generator)
        x = x if x.is_floating_point() else to_float(x)
        if self.auto is not None:
            x = self.auto(x, generator)
        if s.color_jitter:
            x = color_jitter(x, **s.jitter, generator=generator)
        if s.cutout:
            x = cutout(x, side=s.cutout, p=s.cutout_p, fill=self.mean, generator=generator)
        if s.erasing:
            x = random_erasing(x, p=s.erasing, fill=self.mean, generator=generator)
        return x


def crop_and_flip(x: Tensor, *, pad: int, flip: bool, generator: torch.Generator) -> Tensor:
    """Each image shifted by up to ``pad`` pixels (black comes in), then mirrored with probability 1/2.

    One gather for both: rows and columns are chosen by index.
    """
    n, channels, height, width = x.shape
    device = x.device
    top, left = torch.randint(2 * pad + 1, (2, n, 1), device=device, generator=generator)
    rows = torch.arange(height, device=device) + top
    columns = torch.arange(width, device=device) + left
    if flip:
        mirrored = torch.rand(n, 1, device=device, generator=generator) < 0.5
        columns = torch.where(mirrored, columns.flip(1), columns)
    image = torch.arange(n, device=device)[:, None, None, None]
    channel = torch.arange(channels, device=device)[:, None, None]
    return F.pad(x, (pad,) * 4)[image, channel, rows[:, None, :, None], columns[:, None, None, :]]


def cutout(x: Tensor, *, side: int, p: float, fill: Tensor, generator: torch.Generator) -> Tensor:
    """A square of the given side, centred anywhere on the image and clipped at its border, set to ``fill``."""
    n = len(x)
    centre = torch.rand(2, n, 1, device=x.device, generator=generator)
    rows, columns = (
        covered((middle * length).floor() - side // 2, side, length)
        for middle, length in zip(centre, x.shape[-2:], strict=True)
    )
    inside = rows[:, :, None] & columns[:, None]
    chosen = torch.rand(n, 1, 1, device=x.device, generator=generator) < p
    return torch.where((inside & chosen)[:, None], fill[:, None, None], x)


def weak(x: Tensor, generator: torch.Generator, *, shift: int = 2, flip: bool = False) -> Tensor:
    """Float images moved by a few pixels and, where mirroring means nothing, mirrored."""
    return crop_and_flip(x, pad=shift, flip=flip, generator=generator)


def strong(x: Tensor, generator: torch.Generator, *, flip: bool = False) -> Tensor:
    """Moved, turned by up to 20°, stretched and sheared a little, contrast and brightness changed, a square cut out."""
    n, channels, height, _ = x.shape
    draw = torch.rand(7, n, device=x.device, generator=generator) * 2 - 1
    angle, shear, scale_x, scale_y = draw[0] * math.pi / 9, draw[1] * 0.2, 1 + 0.2 * draw[2], 1 + 0.2 * draw[3]
    cos, sin = angle.cos(), angle.sin()
    zero = torch.zeros_like(cos)
    matrix = torch.stack([cos * scale_x, -sin * scale_y + shear, zero, sin * scale_x, cos * scale_y, zero], 1)
    grid = F.affine_grid(matrix.view(-1, 2, 3), [n, channels, height, x.shape[3]], align_corners=False)
    x = F.grid_sample(x, grid.to(x.dtype), align_corners=False)
    x = weak(x, generator, shift=3, flip=flip)
    x = x * (1 + 0.3 * draw[4]).view(-1, 1, 1, 1) + 0.1 * draw[5].view(-1, 1, 1, 1)
    grey = torch.full((channels,), 0.5, device=x.device)
    return cutout(x.clamp(0, 1), side=max(2, height * 3 // 8), p=0.8, fill=grey, generator=generator)
