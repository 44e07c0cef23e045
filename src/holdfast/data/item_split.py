"""Images that an object of the user's gives one at a time: a torch data set, a Hugging Face data set. Open this file to
change what an item may be, or how it becomes pixels.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from io import BytesIO
from math import prod
from pathlib import Path
from typing import Any, Final, Self

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from holdfast.data.images import decode, fit_image, peek, plain_colours, resize, to_images
from holdfast.data.splits import MOST_BYTES, SAMPLED_FILES, Split
from holdfast.errors import HoldfastError, first_line, require
from holdfast.rng import evenly

SMALL: Final = 2**28
"""Bytes of pixels up to which a loader keeps such images in memory: each is then asked for once, not every epoch."""


@dataclass(frozen=True, eq=False)
class ItemSplit(Split):
    """Images of an object, asked for when they are read.

    fetch: the image at a position of the object: a Pillow image, an array or tensor of one (see :func:`to_pixels`), the
    path or the bytes of a file. positions: (N,) of the samples in the object. size: (height, width) every image is
    resized to; not yet chosen where it is (0, 0). channels: 1 or 3. origin: the object, for messages. name_of: what an
    image is called, where it has a name. random: whether its transforms give another image every time.
    """

    fetch: Callable[[int], Any]
    positions: Tensor
    labels: Tensor
    groups: Tensor
    size: tuple[int, int] = (0, 0)
    channels: int = 3
    origin: str = "data"
    name_of: Callable[[int], str] | None = None
    random: bool = False

    @property
    def shape(self) -> tuple[int, int, int]:
        return (self.channels, *self.size)

    @property
    def small(self) -> bool:
        """Whether a loader should keep the images; never those that are drawn anew."""
        return not self.random and len(self) * prod(self.shape) <= SMALL

    def read(self, index: Tensor) -> Tensor:
        images = torch.empty((len(index), *self.shape), dtype=torch.uint8)
        for row, i in enumerate(index.tolist()):
            images[row] = to_pixels(self.image(i), size=self.size, channels=self.channels, what=self.describe(i))
        return images

    def image(self, position: int) -> Any:
        """What the object gives for a sample."""
        try:
            return self.fetch(int(self.positions[position]))
        except HoldfastError:
            raise
        except Exception as error:  # the user's code may fail in any way
            why = f"{type(error).__name__}: {first_line(error)}"
            raise HoldfastError(f"{self.describe(position)} cannot be read: {why}; repair or remove it") from error

    def head(self, position: int) -> tuple[tuple[int, int], str]:
        """(height, width) and Pillow's mode of an image, from its header where it has one."""
        return head_of(self.image(position), self.describe(position))

    def subset(self, index: Tensor) -> Self:
        parts = {name: getattr(self, name)[index] for name in ("positions", "labels", "groups")}
        return replace(self, **parts)

    def describe(self, position: int) -> str:
        at = int(self.positions[position])
        return f"{self.origin}[{at}]" if self.name_of is None else self.name_of(at)

    def key(self, position: int) -> str | int:
        return int(self.positions[position])

    def hashed_positions(self) -> Tensor:
        if self.random:
            return torch.arange(0)
        count = len(self) if len(self) * prod(self.shape) <= MOST_BYTES else min(len(self), SAMPLED_FILES)
        return evenly(len(self), count)


def bytes_of(item: Any) -> bytes | None:
    """The bytes of the file that an item is; None where it is decoded already."""
    item = _opened(item)
    if isinstance(item, Path):
        return item.read_bytes()
    return item.getvalue() if isinstance(item, BytesIO) else None


def head_of(item: Any, what: str) -> tuple[tuple[int, int], str]:
    """(height, width) and Pillow's mode of what :func:`to_pixels` takes, from its header where it has one."""
    item = _opened(item)
    if isinstance(item, Path | BytesIO):
        return peek(item)
    if isinstance(item, Image.Image):
        return (item.height, item.width), item.mode
    _, channels, height, width = _one(item, what).shape
    return (height, width), "L" if channels == 1 else "RGB"


def to_pixels(item: Any, *, size: tuple[int, int], channels: int, what: str) -> Tensor:
    """uint8 (C, H, W) from a Pillow image, from an array or tensor (C, H, W), (H, W, C) or (H, W) that is uint8 or
    float in [0, 1], or from the path or bytes of an image file. what: the image, for messages."""
    item = _opened(item)
    if isinstance(item, Path | BytesIO):
        item = decode(item, channels=channels, least=2 * max(size))
    if isinstance(item, Image.Image):
        return torch.from_numpy(fit_image(plain_colours(item, channels), size))
    x = _one(item, what)
    shown = f"{what} has {x.shape[1]} channels, and other images of this data {channels}"
    require(x.shape[1] == channels or x.shape[1] == 1, f"{shown}; let its transforms make them equal")
    return resize(x, size)[0].expand(channels, -1, -1)


def _opened(item: Any) -> Any:
    """Paths and bytes as what Pillow opens, also as Hugging Face keeps them."""
    if isinstance(item, dict) and {*item} == {"bytes", "path"}:
        item = item["path"] if item["bytes"] is None else item["bytes"]
    if isinstance(item, bytes | bytearray):
        return BytesIO(item)
    return Path(item) if isinstance(item, str) else item


def _one(item: Any, what: str) -> Tensor:
    """uint8 (1, C, H, W) of an array or tensor."""
    if not isinstance(item, Tensor | np.ndarray | list):
        kinds = "a Pillow image, or an array or tensor that is uint8 or float in [0, 1]"
        raise HoldfastError(f"{what} is a {type(item).__name__}; images must be {kinds}")
    x = item.as_subclass(Tensor) if isinstance(item, Tensor) else np.asarray(item)
    floats = x.is_floating_point() if isinstance(x, Tensor) else x.dtype.kind == "f"
    if floats and x.ndim in (2, 3) and min(x.shape) > 0:
        low, high = float(x.min()), float(x.max())
        if (low < 0 or high > 1) and high <= 25:  # beyond that they are more likely bytes as floats
            remedy = "leave Normalize out of the transforms: the model normalises, and a radius is in pixels"
            raise HoldfastError(f"{what} has values from {low:.3g} to {high:.3g}: it is normalised; {remedy}")
    return to_images(x[None], what)
