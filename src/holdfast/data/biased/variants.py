"""A shortcut added to any labelled set: a colour, a corner mark, or a background that goes with the class."""

from __future__ import annotations

import colorsys
import math
from collections.abc import Callable, Mapping
from dataclasses import replace
from itertools import combinations

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import interpolate

from holdfast.data.biased.assign import balanced_groups, biased_groups
from holdfast.data.biased.painted import Painter, paint
from holdfast.data.splits import Dataset, Split
from holdfast.errors import require

MARK_SIDE = 4
"""Cells a side of a corner mark."""


def coloured(data: Dataset, *, conflict: float = 0.05, seed: int = 0, tint: float | None = None) -> Dataset:
    """Images in the colour of their group. tint: 0 leaves them, 1 keeps nothing but brightness times the colour; 1 by
    default for grey images and 0.5 for coloured ones.
    """
    require(tint is None or 0 < tint <= 1, f"tint must be in (0, 1], got {tint}")
    amount = tint if tint is not None else (1.0 if data.shape[0] == 1 else 0.5)
    colours = palette(data.num_classes)
    painter = Tinted(torch.tensor(list(colours.values())) / 255, amount)
    return _variant(data, "coloured", tuple(colours), painter, 3, conflict, seed)


def watermark(data: Dataset, *, conflict: float = 0.05, seed: int = 0) -> Dataset:
    """A mark of 4x4 black and white cells in the lower right corner, a twentieth of the side each."""
    names = tuple(f"mark {k}" for k in range(data.num_classes))
    return _variant(data, "watermark", names, Marked(marks(data.num_classes)), data.shape[0], conflict, seed)


def background(data: Dataset, *, conflict: float = 0.05, seed: int = 0, keep: float = 0.75) -> Dataset:
    """The image, shrunk to a share ``keep`` of its side, on stripes whose colour and direction are the group's."""
    require(0 < keep < 1, f"keep must be in (0, 1), got {keep}")
    colours = palette(data.num_classes)
    painter = Framed(torch.tensor(list(colours.values())) / 255, keep)
    return _variant(data, "background", tuple(f"{name} stripes" for name in colours), painter, 3, conflict, seed)


VARIANTS: Mapping[str, Callable[..., Dataset]] = {
    "coloured": coloured,
    "watermark": watermark,
    "background": background,
}


class Tinted:
    """Brightness times a colour (G, 3), mixed with the image. Painters are objects so that workers can be sent them."""

    def __init__(self, colours: Tensor, amount: float) -> None:
        self.colours, self.amount = colours, amount

    def __call__(self, images: Tensor, groups: Tensor) -> Tensor:
        grey = images.float().mean(1, keepdim=True) if images.shape[1] == 3 else images.float()
        painted = grey * self.colours[groups][:, :, None, None]
        return (images * (1 - self.amount) + painted * self.amount).round().to(torch.uint8)


class Marked:
    """A pattern (G, 4, 4) in the corner."""

    def __init__(self, patterns: Tensor) -> None:
        self.patterns = patterns

    def __call__(self, images: Tensor, groups: Tensor) -> Tensor:
        cell = max(1, min(images.shape[-2:]) // 20)
        mark = self.patterns[groups].repeat_interleave(cell, 1).repeat_interleave(cell, 2)
        painted = images.clone()
        painted[..., -mark.shape[1] :, -mark.shape[2] :] = (mark * 255).to(torch.uint8)[:, None]
        return painted


class Framed:
    """Stripes of a colour (G, 3) around the image."""

    def __init__(self, colours: Tensor, keep: float) -> None:
        self.colours, self.keep = colours, keep

    def __call__(self, images: Tensor, groups: Tensor) -> Tensor:
        height, width = images.shape[-2:]
        inner = (max(1, round(height * self.keep)), max(1, round(width * self.keep)))
        top, left = (height - inner[0]) // 2, (width - inner[1]) // 2
        painted = self._stripes(height, width)[groups]
        small = interpolate(images.float(), size=inner, mode="bilinear", antialias=True).round()
        painted[..., top : top + inner[0], left : left + inner[1]] = small.clamp(0, 255).to(torch.uint8)
        return painted

    def _stripes(self, height: int, width: int) -> Tensor:
        count = len(self.colours)
        angle = torch.arange(count) * (math.pi / count)
        row, column = torch.arange(height)[:, None], torch.arange(width)
        along = angle.cos()[:, None, None] * column + angle.sin()[:, None, None] * row
        bright = (along / max(2, min(height, width) / 10)).floor() % 2
        shade = 0.55 + 0.45 * bright
        return (shade[:, None] * self.colours[:, :, None, None] * 255).round().to(torch.uint8)


def palette(count: int) -> dict[str, tuple[int, int, int]]:
    """So many colours by name: those of the coloured digits, or a wheel of hues for more."""
    from holdfast.data.embedded import COLOURS  # at the top it would be a circle: the digits use biased.assign

    if count <= len(COLOURS):
        return dict(list(COLOURS.items())[:count])
    wheel = {}
    for k in range(count):
        red, green, blue = colorsys.hsv_to_rgb(k / count, 1.0, (1.0, 0.6)[k % 2])
        wheel[f"hue {k}"] = (round(255 * red), round(255 * green), round(255 * blue))
    return wheel


def marks(count: int) -> Tensor:
    """(count, 4, 4) patterns, half of their cells set, that differ in at least four cells while there are enough."""
    cells = MARK_SIDE**2
    codes = [sum(1 << bit for bit in chosen) for chosen in combinations(range(cells), cells // 2)]
    order = np.random.default_rng(16).permutation(len(codes))
    kept: list[int] = []
    for least in (6, 4, 2):
        for code in (codes[i] for i in order):
            if len(kept) < count and all((code ^ other).bit_count() >= least for other in kept):
                kept.append(code)
    require(len(kept) == count, f"there are marks for {len(kept)} classes, not for {count}; choose another variant")
    bits = [[code >> bit & 1 for bit in range(cells)] for code in kept]
    return torch.tensor(bits).view(-1, MARK_SIDE, MARK_SIDE)


def _variant(
    data: Dataset, name: str, names: tuple[str, ...], painter: Painter, channels: int, conflict: float, seed: int
) -> Dataset:
    """Training (and validation) biased, test balanced."""
    groups = data.num_classes

    def biased(split: Split, seed: int) -> Split:
        return paint(split, biased_groups(split.labels, groups, conflict, seed), painter, channels)

    test = data.test
    if test is not None:
        test = paint(test, balanced_groups(test.labels, groups, seed), painter, channels)
    return replace(
        data,
        name=f"{data.name}-{name}",
        train=biased(data.train, seed),
        val=None if data.val is None else biased(data.val, seed + 1),
        test=test,
        group_names=names,
    )
