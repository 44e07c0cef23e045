"""Images without labels: to score, to fit a detector on, or to learn from beside a few labels.

Any folder, flat or nested, with or without classes, or whatever ``holdfast.data.load`` takes.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from holdfast.data.anomalies import holds_anomalies, read_anomalies
from holdfast.data.images import GREY_MODES, peek, resize
from holdfast.data.listing import ReaderOptions, images_under, refuse_outside
from holdfast.data.load_data import common_shape, load
from holdfast.data.readers.image_tables import scan_unlabelled
from holdfast.data.readers.npz import read_unlabelled
from holdfast.data.splits import ArraySplit, Dataset, FileSplit, Paths, Split, refuse
from holdfast.data.tables import TABLES
from holdfast.errors import require
from holdfast.files import at_home, reading
from holdfast.printable import printable
from holdfast.rng import derive
from holdfast.types import Note

REST = "rest"
"""What ``unlabeled`` is called that are the training images without their labels."""


def open_unlabelled(
    data: str | Path | Split | Dataset,
    *,
    root: str | Path | None = None,
    split: str | None = None,
    usual: str = "train",
    shape: tuple[int, int, int] | None = None,
    image_size: int | None = None,
    terms: Mapping[str, Any] | None = None,
    confine: bool = False,
    note: Callable[[str], None] | None = None,
) -> Split:
    """A split of images; they need no labels, and have -1 where there are none.

    All images of a folder are taken, wherever they are in it, and an .npz file or a table without parts as a whole, in
    its order. split: which part of anything else, ``usual`` by default; a file without parts is split as training
    splits it. Of a set with anomalies, ``train`` is its unlabelled part and ``test`` all that is normal in its tests.
    shape: (C, H, W) that a detector or model takes; images are resized to it, and grey ones are repeated over three
    channels where colour is taken. Never the other way: what takes grey would judge a colour image by what is left of
    it without a word.
    terms: further arguments of :func:`holdfast.data.load` for anything that it has to split, such as data_seed.
    note: called with how many rows of a file are left out where nobody chose a part of it.
    """
    if isinstance(data, Dataset):
        return _part(data, split or usual)
    require(
        split is None or not is_taken_whole(data),
        f"split {split!r} is for data that has parts, and "
        + (f"the folder {printable(data)}" if isinstance(data, (str, Path)) else "a split in memory")
        + " is taken whole; leave it out",
    )
    if not isinstance(data, (str, Path)):
        return data
    path = at_home(data)
    if holds_anomalies(path):
        held = read_anomalies(path)
        own = {"train": held.unlabeled, "labeled": held.labeled, "test": held.normal_tests()}
        name = split or usual
        require(name in own, f"a set with anomalies has no split {name!r}; choose train, labeled or test")
        return own[name]
    if shape is not None:
        image_size = shape[1] if shape[1] == shape[2] else None
    options = ReaderOptions(None if root is None else at_home(root), image_size, confine=confine)
    parts = _parts(path, options)
    if not parts or (split is not None and (len(parts) == 1 or split not in parts)):
        how: dict[str, Any] = {"root": options.root, "image_size": image_size, "least_classes": 1, "confine": confine}
        loaded = load(data, **{**how, **(terms or {})})
        images = _part(loaded, split or usual)
    else:
        name = next(iter(parts)) if len(parts) == 1 else split or usual
        require(name in parts, f"{printable(path)} has no {name} part; choose with split: {', '.join(parts)}")
        images = parts[name]
        if note is not None and split is None and len(parts) > 1:
            rows = sum(map(len, parts.values()))
            note(
                f"{printable(path)} has parts, and only the {name} part is taken: {len(images)} of {rows} rows; "
                "--split chooses another"
            )
        if isinstance(images, FileSplit):
            size, channels, _ = common_shape(images.paths, image_size)
            images = replace(images, size=size, channels=channels)
        elif image_size is not None:
            images = resized(images, (image_size, image_size))
    images = _with_channels(images, None if shape is None else shape[0])
    return images if shape is None else resized(images, shape[1:])


def is_taken_whole(data: str | Path | Split | Dataset) -> bool:
    """Whether data is taken whole, whatever parts there are elsewhere: a folder, or a split in memory."""
    return at_home(data).is_dir() if isinstance(data, (str, Path)) else not isinstance(data, Dataset)


def _parts(path: Path, options: ReaderOptions) -> Mapping[str, Split]:
    """What a file or folder says belongs together, by name; a folder is one part. Nothing for anything else."""
    if path.is_dir():
        found = images_under(path)
        require(bool(found), f"{printable(path)} holds no images; give a folder with some")
        none = torch.full((len(found),), -1)
        whole = FileSplit(Paths(found), none, none)
        refuse_outside(Dataset(path.name, (), whole), path, options)
        return {"": whole}
    if path.suffix.lower() not in (".npz", *TABLES) or not path.is_file():
        return {}
    if path.suffix.lower() == ".npz":
        return read_unlabelled(path)
    data = refuse_outside(scan_unlabelled(path, options.root), path, options)
    parts = {name: split for name, split in data.splits.items() if len(split)}
    refuse([*data.problems, *([] if parts else ["there is no sample"])], data.name)
    return parts


def _with_channels(images: Split, channels: int | None) -> Split:
    """Images with so many channels, which grey ones can have without loss; as many as they need without a number."""
    if isinstance(images, ArraySplit) and images.shape[0] == 1 and channels == 3:
        return replace(images, images=images.images.expand(-1, 3, -1, -1))
    if not isinstance(images, FileSplit):
        return images
    # Every header is read, unless colour is taken anyway: the few that tell a set's size may all be grey.
    paths = () if channels == 3 else images.paths
    coloured = next((path for path in paths if peek(path)[1] not in GREY_MODES), None)
    require(
        channels is None or coloured is None,
        f"{printable(coloured or '')} is in colour, and grey images are needed; convert it, or leave it out",
    )
    return replace(images, channels=3 if channels == 3 or coloured else 1)


def resized(images: Split, size: tuple[int, int]) -> Split:
    """Images at another size, resized as for training."""
    if isinstance(images, FileSplit):
        return replace(images, size=size)
    if isinstance(images, ArraySplit):
        return replace(images, images=resize(images.images, size))
    return images


def _part(data: Dataset, split: str) -> Split:
    require(split in data.splits, f"{data.name} has no split {split!r}; choose {' or '.join(data.splits)}")
    return data.splits[split]


def few_labels(
    data: Dataset,
    labels: int | None,
    *,
    unlabeled: str | Split | None = None,
    root: str | None = None,
    seed: int = 0,
    confine: bool = False,
) -> Dataset:
    """A set that trains on so many labels, and has other images as ``unlabeled``.

    labels: None keeps all. unlabeled: images without labels; ``rest`` are the training images that lost theirs. None
    keeps what the set itself brings, and is the rest where it brings none.
    """
    train = data.train
    chosen = torch.arange(len(train)) if labels is None else choose_labels(train.labels, labels, data.num_classes, seed)
    if unlabeled is None and data.unlabeled is not None:
        others: Split | None = data.unlabeled
    elif unlabeled is None or unlabeled == REST:
        lost = torch.ones(len(train), dtype=torch.bool)
        lost[chosen] = False
        require(
            unlabeled is None or bool(lost.any()),
            f"all {len(train)} training images of {data.name} keep their label, so there is no rest; "
            "ask for fewer --labels, or name other images with --unlabeled",
        )
        others = train.subset(lost.nonzero().flatten()) if lost.any() else None
    else:
        with reading():  # a split is returned as it is
            others = open_unlabelled(unlabeled, root=root, shape=data.shape, confine=confine)
        require(
            others.shape == data.shape,
            f"unlabelled images have shape (C, H, W) {others.shape} and those of {data.name} {data.shape}; "
            "make them equal, for example with --image-size",
        )
    notes = data.notes
    if others is not None:
        notes = (*notes, Note("few-labels", f"{len(chosen)} labels, {len(others)} images without"))
    return replace(data, train=train.subset(chosen), unlabeled=others, notes=notes)


def choose_labels(labels: Tensor, count: int, classes: int, seed: int) -> Tensor:
    """Positions of ``count`` labels, as evenly over the classes as they go, drawn by the seed.

    >>> classes = torch.tensor([0, 0, 0, 0, 1, 1])
    >>> classes[choose_labels(classes, 4, 2, seed=0)]
    tensor([0, 0, 1, 1])
    """
    require(
        classes <= count <= len(labels),
        f"labels must be in {classes}..{len(labels)} (at least one per class, at most all), got {count}",
    )
    generator = torch.Generator().manual_seed(derive(seed, "few-labels/choice"))
    order = torch.randperm(len(labels), generator=generator)
    rank = torch.empty(len(labels), dtype=torch.int64)
    for label in range(classes):
        own = order[labels[order] == label]
        rank[own] = torch.arange(len(own))
    # by rank within the class first: every class gets its n-th sample before any gets one more
    first = order[rank[order].argsort(stable=True)][:count]
    return first.sort().values
