"""Data sets and their splits, in memory or on disk: what they are, their statistics and hashes."""

from __future__ import annotations

import hashlib
import json
import os
from array import array
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final, Protocol, Self, overload

import numpy as np
import torch
from torch import Tensor

from holdfast.data.images import Given, Unreadable, peek, read_image, to_images, to_whole
from holdfast.data.shard_files import Member, Members
from holdfast.errors import HoldfastError, require
from holdfast.files import status
from holdfast.metrics.intervals import exact_bounds
from holdfast.printable import printable
from holdfast.rng import evenly
from holdfast.types import Note

SAMPLED_FILES = 2048
"""Enough decoded images for three digits of the mean; all arrays in memory are used whole."""
MOST_BYTES: Final = 2**30
"""Files of more than this in all are hashed by names and sizes; reading them would take too long."""
DECLARED: Final = ("aligned", "conflicting")
"""Groups of these names say of every sample whether it follows the spurious correlation, as those of BAR do."""
LEAST_LEAD: Final = 1.25
"""The usual group of a class has at least so many times the training samples of the next one."""
Painter = Callable[[Tensor, Tensor], Tensor]
"""Images uint8 (B, C, H, W) and their groups (B,) to painted images uint8 (B, C', H, W)."""


class Split(Protocol):
    """Labelled images that can be read by position.

    labels: (N,) int64. groups: (N,) int64, -1 where unknown. shape: (C, H, W) of every image read.
    """

    labels: Tensor
    groups: Tensor

    @property
    def shape(self) -> tuple[int, int, int]: ...
    def __len__(self) -> int:
        return len(self.labels)

    def read(self, index: Tensor) -> Tensor:
        """Images at these positions, uint8 (B, C, H, W), on the CPU."""

    def subset(self, index: Tensor) -> Self: ...
    def describe(self, position: int) -> str:
        """Where a sample comes from, for messages and reports."""

    def key(self, position: int) -> str | int:
        """What identifies a sample in its set: two rows of a table may name one file."""
        return self.describe(position)

    def hashed_positions(self) -> Tensor:
        """Which images stand for the split in its hash, with all labels and groups."""
        return torch.arange(len(self))


@dataclass(frozen=True, eq=False, init=False)
class ArraySplit(Split):
    """Images in memory: uint8 (N, C, H, W).

    They are made of arrays or tensors of the layouts and types that an .npz file may have; anything else is refused.
    labels, groups: whole numbers of any type; -1, for unknown, where none are given.
    positions: (N,) of each sample in its origin, for a part of it; None for the whole.

    >>> ArraySplit(np.zeros((2, 8, 8), dtype=np.uint8), [0, 1]).shape
    (1, 8, 8)
    """

    images: Tensor
    labels: Tensor
    groups: Tensor
    origin: str = "array"
    positions: Tensor | None = None

    def __init__(
        self,
        images: Given,
        labels: Given | None = None,
        groups: Given | None = None,
        origin: str = "array",
        positions: Tensor | None = None,
    ) -> None:
        pixels = to_images(images, "images")
        count, numbers = len(pixels), {}
        for name, given in (("labels", labels), ("groups", groups)):
            own = torch.full((count,), -1) if given is None else to_whole(given, name, least=-1)
            require(len(own) == count, f"{origin}: there are {count} images and {len(own)} {name}; make them equal")
            numbers[name] = own
        for name, value in {"images": pixels, **numbers, "origin": origin, "positions": positions}.items():
            object.__setattr__(self, name, value)  # the class is frozen, and made of more types than it holds

    @property
    def shape(self) -> tuple[int, int, int]:
        return tuple(self.images.shape[1:])  # type: ignore[return-value]

    def read(self, index: Tensor) -> Tensor:
        return self.images[index]

    def subset(self, index: Tensor) -> Self:
        parts = {name: getattr(self, name)[index] for name in ("images", "labels", "groups")}
        return replace(self, **parts, positions=index if self.positions is None else self.positions[index])

    def describe(self, position: int) -> str:
        return f"{self.origin}[{position if self.positions is None else int(self.positions[position])}]"


class Paths(Sequence[Path]):
    """A fixed list of paths, kept as one block of bytes.

    A million Path objects take most of a gigabyte, and worker processes copy them page by page as they touch them; the
    block takes the length of the names and is shared.

    >>> Paths(["a/1.png", "a/2.png"])[1].as_posix()
    'a/2.png'
    """

    def __init__(self, paths: Iterable[str | os.PathLike[str]]) -> None:
        block, self._ends = bytearray(), array("q", [0])
        for path in paths:  # one at a time: an iterator of a million need never be a list
            block += os.fsencode(path)
            self._ends.append(len(block))
        self._block = bytes(block)

    def __len__(self) -> int:
        return len(self._ends) - 1

    @overload
    def __getitem__(self, index: int) -> Path: ...
    @overload
    def __getitem__(self, index: slice) -> Paths: ...
    def __getitem__(self, index: int | slice) -> Path | Paths:
        if isinstance(index, slice):
            return Paths(self[i] for i in range(*index.indices(len(self))))
        at = range(len(self))[index]
        return Path(os.fsdecode(self._block[self._ends[at] : self._ends[at + 1]]))


@dataclass(frozen=True, eq=False)
class FileSplit(Split):
    """Images on disk or in shards, decoded when they are read.

    size: (height, width) every image is resized to; not yet chosen where it is (0, 0). channels: 1 or 3. rows: (N,) of
    the table that names the files, counted from 0; None without one.
    """

    paths: Sequence[Path] | Members
    labels: Tensor
    groups: Tensor
    size: tuple[int, int] = (0, 0)
    channels: int = 3
    rows: Tensor | None = None

    @property
    def shape(self) -> tuple[int, int, int]:
        return (self.channels, *self.size)

    def head(self, position: int) -> tuple[tuple[int, int], str]:
        """(height, width) and Pillow's mode of an image, from its header."""
        return peek(self.paths[position])

    def read(self, index: Tensor) -> Tensor:
        images = np.empty((len(index), *self.shape), dtype=np.uint8)
        if isinstance(self.paths, Members):
            self.paths.prepare(index.tolist())
        for row, i in enumerate(index.tolist()):
            images[row] = read_image(self.paths[i], size=self.size, channels=self.channels)
        return torch.from_numpy(images)

    def subset(self, index: Tensor) -> Self:
        kept = (
            self.paths.subset(index.numpy())
            if isinstance(self.paths, Members)
            else Paths(self.paths[i] for i in index.tolist())
        )
        rows = None if self.rows is None else self.rows[index]
        return replace(self, paths=kept, labels=self.labels[index], groups=self.groups[index], rows=rows)

    def describe(self, position: int) -> str:
        return printable(str(self.paths[position]))

    def key(self, position: int) -> str | int:
        return self.describe(position) if self.rows is None else int(self.rows[position])


@dataclass(frozen=True, eq=False)
class WrappedSplit(Split):
    """Another split's images under these labels and groups.

    painter: what they are painted with as they are read, to have so many channels; None leaves them.
    """

    inner: Split
    labels: Tensor
    groups: Tensor
    painter: Painter | None = None
    channels: int = 3

    @property
    def shape(self) -> tuple[int, int, int]:
        return self.inner.shape if self.painter is None else (self.channels, *self.inner.shape[1:])

    def read(self, index: Tensor) -> Tensor:
        images = self.inner.read(index)
        return images if self.painter is None else self.painter(images, self.groups[index])

    def subset(self, index: Tensor) -> Self:
        return replace(self, inner=self.inner.subset(index), labels=self.labels[index], groups=self.groups[index])

    def describe(self, position: int) -> str:
        return self.inner.describe(position)

    def key(self, position: int) -> str | int:
        return self.inner.key(position)


@dataclass(frozen=True, eq=False)
class Dataset:
    """A named set: a training split, and a validation and a test split where there are some.

    classes: name of each class; a label is a position in it.
    group_names: name of each group; empty where the set has no groups.
    group_attribute: what the groups are, in a word such as "colour" or "background"; empty where nobody said.
    notes: what the reader decided by itself and the user should know.
    unlabeled: images to learn from whose labels are not known, or not to be used.
    problems: why it cannot be used, as its reader found; ``load`` refuses them, ``holdfast data check`` lists them.
    untrainable: why it cannot be trained on, though a model may be measured on it.
    unreadable: files that were left out, where skip_unreadable was given.
    """

    name: str
    classes: tuple[str, ...]
    train: Split
    val: Split | None = None
    test: Split | None = None
    group_names: tuple[str, ...] = ()
    group_attribute: str = ""
    notes: tuple[Note, ...] = ()
    unlabeled: Split | None = None
    problems: tuple[str, ...] = ()
    untrainable: tuple[str, ...] = ()
    unreadable: tuple[Unreadable, ...] = ()

    @property
    def shape(self) -> tuple[int, int, int]:
        return self.train.shape

    @property
    def num_classes(self) -> int:
        return len(self.classes)

    @property
    def usual_groups(self) -> Tensor:
        """(K,) the usual group of each class in training; -1 where it has none (:func:`aligned_groups`)."""
        return aligned_groups(self.train.labels, self.train.groups, self.num_classes, self.group_names)

    @property
    def splits(self) -> dict[str, Split]:
        """The labelled splits that there are, by name."""
        parts = {"train": self.train, "val": self.val, "test": self.test}
        return {name: split for name, split in parts.items() if split is not None}


def all_images(split: Split) -> Tensor:
    """uint8 (N, C, H, W); not a copy where they are in memory."""
    return split.images if isinstance(split, ArraySplit) else split.read(torch.arange(len(split)))


def aligned_groups(labels: Tensor, groups: Tensor, num_classes: int, names: Sequence[str] = ()) -> Tensor:
    """(K,) the usual group of each class in training, which is its shortcut; -1 where a class has none.

    That is its most frequent group, if it clearly is (1.25 times as many samples as the next one, and the exact 95 %
    interval of its share of both is above one half) and if it goes with the class (its share is higher than in the
    other classes together: exact intervals, at a level at which those of all cells hold, do not overlap). Without the
    first, the choice between a class's groups is chance; without the second, the group says nothing of the class.

    names: of the groups. Where they are "aligned" and "conflicting" the data says itself which samples are aligned.

    >>> labels = torch.tensor([0] * 50 + [1] * 50 + [2] * 50)
    >>> groups = torch.tensor([0] * 46 + [1] * 4 + [1] * 47 + [0] * 3 + [0, 1] * 25)
    >>> aligned_groups(labels, groups, 3)
    tensor([ 0,  1, -1])
    """
    usual, known = torch.full((num_classes,), -1, dtype=torch.int64), groups >= 0
    if not bool(known.any()):
        return usual
    width = int(groups.max()) + 1
    cells = torch.bincount(labels[known] * width + groups[known], minlength=num_classes * width).view(-1, width)
    if set(names) == set(DECLARED):
        return usual.masked_fill(cells.sum(1) > 0, list(names).index(DECLARED[0]))
    by_group, total, tail = cells.sum(0).tolist(), int(cells.sum()), 0.025 / cells.numel()
    for label, row in enumerate(cells.tolist()):
        (most, group), (next_most, _) = sorted([*((n, g) for g, n in enumerate(row)), (0, -1)], reverse=True)[:2]
        if most < LEAST_LEAD * next_most or exact_bounds(most, most + next_most)[0] <= 0.5:
            continue
        inside, outside = (most, sum(row)), (by_group[group] - most, total - sum(row))
        if exact_bounds(*inside, tail)[0] > exact_bounds(*outside, tail)[1]:
            usual[label] = group
    return usual


def bias_alignment(labels: Tensor, groups: Tensor, usual: Tensor) -> dict[str, Tensor]:
    """(N,) which samples are bias-aligned and which bias-conflicting. Those of an unknown group and those of a class
    without a usual one are neither. Empty where no class has a usual group.

    usual: (K,) the usual group of each class in training, as :func:`aligned_groups` finds it.

    >>> bias_alignment(torch.tensor([0, 0, 0]), torch.tensor([2, 1, -1]), torch.tensor([2]))
    {'aligned': tensor([ True, False, False]), 'conflicting': tensor([False,  True, False])}
    """
    if not bool((usual >= 0).any()):
        return {}
    own = usual[labels]
    known = (groups >= 0) & (own >= 0)
    return {"aligned": known & (groups == own), "conflicting": known & (groups != own)}


def hold_out(split: Split, share: float, seed: int) -> tuple[Split, Split]:
    """Cut a seeded share of every class off: (what remains, what was held out).

    A class keeps at least one sample on the remaining side.
    """
    generator = torch.Generator().manual_seed(seed)
    order = torch.randperm(len(split), generator=generator)
    labels = split.labels[order]
    held = torch.zeros(len(split), dtype=torch.bool)
    for label in np.unique(labels.numpy()).tolist():
        own = order[labels == label]
        held[own[: min(round(share * len(own)), len(own) - 1)]] = True
    return split.subset((~held).nonzero().flatten()), split.subset(held.nonzero().flatten())


def channel_statistics(split: Split) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """(mean, std) of each channel in [0, 1]; a constant channel gets a deviation of 1/255, never 0."""
    count = len(split) if isinstance(split, ArraySplit) else min(len(split), SAMPLED_FILES)
    index = evenly(len(split), count)
    channels = split.shape[0]
    histogram = torch.zeros(channels, 256, dtype=torch.float64)
    for part in torch.split(index, 1024):
        images = split.read(part)
        histogram += torch.stack([torch.bincount(images[:, c].flatten(), minlength=256) for c in range(channels)])
    values = torch.arange(256, dtype=torch.float64) / 255
    share = histogram / histogram.sum(1, keepdim=True)
    mean = share @ values
    variance = (share * (values - mean[:, None]) ** 2).sum(1)
    return tuple(mean.tolist()), tuple(variance.sqrt().clamp_min(1 / 255).tolist())


def hash_data(data: Dataset, splits: Iterable[Split | None]) -> dict[str, str]:
    """SHA-256 of some splits of a set, and what it was taken over; the order counts."""
    digest = hashlib.sha256(json.dumps([data.classes, data.group_names]).encode())
    kinds = [_hash_split(split, digest) for split in splits if split is not None]
    return {"hash": digest.hexdigest(), "hash_over": max(kinds, key=len, default="nothing")}


def _hash_split(split: Split, digest: Any) -> str:
    digest.update(json.dumps([len(split), list(split.shape)]).encode())
    for numbers in (split.labels, split.groups):
        digest.update(numbers.cpu().contiguous().numpy().tobytes())
    inner = split
    while isinstance(inner, WrappedSplit) and inner.painter is None:
        inner = inner.inner
    if not isinstance(inner, FileSplit):
        positions = inner.hashed_positions()
        for part in torch.split(positions, 4096):
            digest.update(split.read(part).contiguous().numpy().tobytes())
        return "pixels" if len(positions) == len(split) else f"labels and the pixels of {len(positions)} images"
    try:
        files: Sequence[Path | Member] = inner.paths
        sizes = array("q", map(_file_size, files))
        whole = sum(sizes) <= MOST_BYTES
        for path, size in zip(files, sizes, strict=True):
            digest.update(f"{_short_name(path)}/{size}/".encode("utf-8", "surrogateescape"))
            if whole:
                digest.update(path.read_bytes())
    except OSError as error:
        what = f"cannot read {error.filename}: {error.strerror}"
        raise HoldfastError(f"{what}; check the data with 'holdfast data check'") from error
    return "files" if whole else "names and sizes of files"


def _file_size(path: Path | Member) -> int:
    return path.size if isinstance(path, Member) else status(path).st_size


def _short_name(path: Path | Member) -> str:
    """A file by its folder and name, which shards keep: a folder and the shards made of it have one hash."""
    return "/".join(path.id.split("/")[-2:]) if isinstance(path, Member) else f"{path.parent.name}/{path.name}"
