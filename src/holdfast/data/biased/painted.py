"""A split whose images are drawn on as they are read."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from torch import Tensor

from holdfast.data.splits import ArraySplit, Split

Painter = Callable[[Tensor, Tensor], Tensor]
"""Images uint8 (B, C, H, W) and their groups (B,) to painted images uint8 (B, C', H, W)."""
CHUNK = 1024


@dataclass(frozen=True, eq=False)
class PaintedSplit:
    """Another split's images with something of their group drawn on them."""

    base: Split
    groups: Tensor
    painter: Painter
    channels: int

    @property
    def labels(self) -> Tensor:
        return self.base.labels

    @property
    def shape(self) -> tuple[int, int, int]:
        return (self.channels, *self.base.shape[1:])

    def __len__(self) -> int:
        return len(self.base)

    def read(self, index: Tensor) -> Tensor:
        return self.painter(self.base.read(index), self.groups[index])

    def subset(self, index: Tensor) -> PaintedSplit:
        return replace(self, base=self.base.subset(index), groups=self.groups[index])

    def describe(self, position: int) -> str:
        return self.base.describe(position)

    def key(self, position: int) -> str | int:
        return self.base.key(position)


def paint(base: Split, groups: Tensor, painter: Painter, channels: int) -> Split:
    """Painted at once where the images are in memory, as they are read where they are files."""
    if not isinstance(base, ArraySplit):
        return PaintedSplit(base, groups, painter, channels)
    images = base.images.new_empty(len(base), channels, *base.shape[1:])
    for start in range(0, len(base), CHUNK):
        part = slice(start, start + CHUNK)
        images[part] = painter(base.images[part], groups[part])
    return replace(base, images=images, groups=groups)
