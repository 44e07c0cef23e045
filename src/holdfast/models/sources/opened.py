"""What opening a model gives, and what a single source hands over for it."""

from __future__ import annotations

from dataclasses import dataclass

from torch import nn

from holdfast.models.sources.prepared import Prepared
from holdfast.models.sources.preprocessing import Preprocessing


@dataclass(frozen=True, eq=False)
class Found:
    """A network as its source has it.

    net: in evaluation mode, on its device; takes images as ``preprocessing`` makes them. preprocessing: what its own
    settings state, None where they are silent. classes: the name behind each output; aliases: other names of each.
    size: (height, width) it was made for, None where any will do or nobody says. crop: share of
    each side that its published evaluation keeps. channels: how many it takes, None
    where nobody says. hash: SHA-256 of the weights. notes: what the user should hear; warnings: what may be wrong.
    """

    net: nn.Module
    preprocessing: Preprocessing | None = None
    classes: tuple[str, ...] | None = None
    aliases: tuple[tuple[str, ...], ...] = ()
    size: tuple[int, int] | None = None
    crop: float = 1.0
    channels: int | None = None
    hash: str | None = None
    notes: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()


@dataclass(frozen=True, eq=False)
class Opened:
    """A model ready to be aligned with data.

    spec: as the user wrote it. source: which kind it is, such as "timm". model: from images (B, C, H, W) in [0, 1] at
    the data's size to one row of outputs an image (logits or not: that is for alignment to find out). stated: what
    the model's own settings say, None where they are silent and images go in as they are. classes, aliases: names of
    each output. size, channels: what the network takes; read_size: at which images should be read so
    that they are cut as in its published evaluation. gradients: whether they reach the input, as tried out;
    no_gradients: why not. hash: SHA-256 of the weights, None where there are none to hash.
    """

    spec: str
    source: str
    model: Prepared
    stated: Preprocessing | None
    classes: tuple[str, ...] | None
    aliases: tuple[tuple[str, ...], ...]
    size: tuple[int, int] | None
    read_size: tuple[int, int] | None
    channels: int
    gradients: bool
    no_gradients: str | None
    hash: str | None
    notes: tuple[str, ...]
    warnings: tuple[str, ...]
