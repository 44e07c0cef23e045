"""What a source of models offers, what it is asked for, and what it returns; and what an exported file says of
itself. Open this file to write a source.

A source is one file with one class that derives from :class:`ModelSource` and declares itself with
``holdfast.parts.source``. Nothing here imports torch, so that the declarations can be read without it.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, Final

from holdfast import __version__
from holdfast.errors import HoldfastError, explaining, require

if TYPE_CHECKING:
    from contextlib import AbstractContextManager
    from pathlib import Path

    import torch
    from torch import nn

Sides = tuple[int, int]
"""(height, width)."""
Size = int | Sides
"""The side of square images, or (height, width)."""
PICKLED = (".pth", ".pt", ".bin", ".ckpt", ".tar")
"""Ends of file names that torch.save is used with."""


@dataclass(frozen=True)
class Preprocessing:
    """(x - mean) / std with one value per channel, red first; then, with bgr, the channels in reverse order.

    One value speaks for every channel.

    >>> Preprocessing((0.5,), (0.25,)).undone()
    Preprocessing(mean=(-2.0,), std=(4.0,), bgr=False)
    """

    mean: tuple[float, ...] = (0.0,)
    std: tuple[float, ...] = (1.0,)
    bgr: bool = False

    def __post_init__(self) -> None:
        both = f"{list(self.mean)} and {list(self.std)}"
        require(len(self.mean) == len(self.std) > 0, f"mean and std must be as long as each other, got {both}")

    @classmethod
    def stated(cls, mean: Sequence[float] | None, std: Sequence[float] | None) -> Preprocessing | None:
        """What a model's settings say; None where they say nothing."""
        require((mean is None) == (std is None), "mean and std go together; give both or neither")
        return None if mean is None or std is None else cls(tuple(map(float, mean)), tuple(map(float, std)))

    def undone(self) -> Preprocessing:
        """The inverse of the affine part: what to put before a network that normalises once too often."""
        mean = tuple(-m / s for m, s in zip(self.mean, self.std, strict=True))
        return Preprocessing(mean, tuple(1 / s for s in self.std))

    def for_channels(self, channels: int) -> Preprocessing:
        """The same with exactly that many values.

        >>> Preprocessing((0.5,), (0.25,)).for_channels(3).mean
        (0.5, 0.5, 0.5)
        """
        if len(self.mean) == channels:
            return self
        if len(self.mean) == 1:
            return Preprocessing(self.mean * channels, self.std * channels, self.bgr)
        if channels == 1 and len(self.mean) == 3:  # a grey network behind colour settings: the average of them
            return Preprocessing((sum(self.mean) / 3,), (sum(self.std) / 3,))
        raise HoldfastError(f"mean and std must have {channels} values, one per channel, got {list(self.mean)}")

    def __str__(self) -> str:
        if self == Preprocessing(self.mean, self.std) and set(self.mean) == {0.0} and set(self.std) == {1.0}:
            return "none"
        mean, std = (", ".join(f"{v:.4g}" for v in values) for values in (self.mean, self.std))
        return f"mean ({mean}), std ({std})" + (", blue first" if self.bgr else "")


NONE = Preprocessing()
IMAGENET = Preprocessing((0.485, 0.456, 0.406), (0.229, 0.224, 0.225))
HALF = Preprocessing((0.5,), (0.5,))


@dataclass(frozen=True)
class OpenRequest:
    """What the caller of ``open_model`` knows and a source may need.

    shape: (C, H, W) of the data. model: architecture of a weight file: its name, or what makes it. num_classes: of the
    data. pretrained: whether published weights are wanted. preprocessing, image_size: what the user states, None for
    what the model's own settings say.
    """

    shape: tuple[int, int, int]
    device: torch.device
    model: Any = None
    num_classes: int | None = None
    pretrained: bool = True
    preprocessing: Preprocessing | None = None
    image_size: Sides | None = None


@dataclass(frozen=True, eq=False)
class SourceModel:
    """A network as its source has it: trained, or to be trained, with its published weights or fresh ones.

    net: takes images as ``preprocessing`` makes them; from ``open``, in evaluation mode and on its device.
    preprocessing: what its own settings or published weights state, None where they do not. classes: the name behind
    each output; aliases: other names of each. published: whether all of these are of weights that its architecture was
    published with, which need not be its own. size: (height, width) it was made for, None where any will do or it is
    not stated. crop: share of each side that its published evaluation keeps. channels: how many it takes, None where
    that is not stated. hash: SHA-256 of the weights, by default of ``net``'s. notes: what to tell the user; warnings:
    what may be wrong.
    """

    net: nn.Module
    preprocessing: Preprocessing | None = None
    classes: tuple[str, ...] | None = None
    aliases: tuple[tuple[str, ...], ...] = ()
    size: Sides | None = None
    crop: float = 1.0
    channels: int | None = None
    hash: str | None = None
    notes: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()
    published: bool = False


class ModelSource:
    """One kind of model. A source overrides what it can do; ``holdfast list models`` shows its names."""

    def names(self) -> Sequence[str]:
        """The architectures that it knows by name."""
        return ()

    def has(self, name: str) -> bool:
        """Whether it knows an architecture; it may raise an error that says more than no."""
        return name in self.names()

    def accepts(self, path: Path) -> bool:
        """Whether it opens this file or folder, where its suffix alone does not decide."""
        return True

    def build(
        self, name: str, *, num_classes: int, channels: int, image_size: Sides | None, pretrained: bool
    ) -> SourceModel:
        """An architecture for training, with a head for these classes. channels: of the result, if it takes others."""
        raise NotImplementedError

    def open(self, name: Any, request: OpenRequest) -> SourceModel:
        """A trained network for an audit, with the head it was trained with. name: after the prefix, or a path."""
        raise NotImplementedError

    def expected_input(self, name: str) -> tuple[Preprocessing | None, Sides | None]:
        """What an architecture's weights expect where their file does not say: (preprocessing, the only size)."""
        return None, None

    @staticmethod
    def getting(name: str, *, size: Sides | None, pretrained: bool) -> AbstractContextManager[None]:
        """Around a library's call that builds an architecture, or gets its published weights."""
        if pretrained:
            remedy = "bring the file along and give --weights FILE to train, or audit it: FILE --model"
            return explaining(f"cannot get the published weights of {name}", f"without a network, {remedy} {name}")
        images = f"{size[0]}x{size[1]} images" if size is not None else "its own image size"
        return explaining(f"cannot build {name} for {images}", "change --image-size or --model")

    @classmethod
    def trains(cls) -> bool:
        return cls.build is not ModelSource.build

    @classmethod
    def opens(cls) -> bool:
        return cls.open is not ModelSource.open


def both_sides(size: Size) -> Sides:
    """(height, width).

    >>> both_sides(32), both_sides((28, 32))
    ((32, 32), (28, 32))
    """
    return (size, size) if isinstance(size, int) else size


def hash_file(path: str) -> str:
    """SHA-256 of a file's bytes: for formats that hold a program beside the weights."""
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


KEY: Final = "holdfast"
"""The name of the entry in an ONNX file's metadata."""
MEMBER: Final = "holdfast.json"
"""The name of the member in archives of torch."""


@dataclass(frozen=True)
class ExportMetadata:
    """classes: the name behind each output. channels, size: of its images, which are float in [0, 1], NCHW: the file
    normalises them itself. output: "logits" or "probabilities". weights: SHA-256 of the run's."""

    classes: tuple[str, ...]
    channels: int
    size: Sides
    output: str
    weights: str = ""
    holdfast: str = __version__

    def to_json(self) -> str:
        return json.dumps(asdict(self), ensure_ascii=False)

    @classmethod
    def from_json(cls, text: str | bytes) -> ExportMetadata | None:
        """None for what is not ours: others may use the same names.

        >>> ExportMetadata.from_json("{}") is None
        True
        """
        try:
            values = json.loads(text)
            classes = tuple(map(str, values["classes"]))
            height, width = map(int, values["size"])
            said = (str(values[name]) for name in ("output", "weights", "holdfast"))
            return cls(classes, int(values["channels"]), (height, width), *said)
        except (ValueError, TypeError, LookupError, RecursionError):
            return None

    def stated(self) -> dict[str, Any]:
        """The fields of a ``SourceModel`` that it states."""
        return {"classes": self.classes, "preprocessing": NONE, "channels": self.channels, "size": self.size}
