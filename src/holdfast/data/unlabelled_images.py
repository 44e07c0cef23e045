"""Pictures to be scored: any folder, flat or nested, with or without classes, or whatever ``data.load`` takes."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from holdfast.data import arrays, image_tables
from holdfast.data.anomalies import AnomalySet, holds_anomalies, read_anomalies
from holdfast.data.folders import images_under
from holdfast.data.images import GREY_MODES, peek
from holdfast.data.listing import Files, common_shape
from holdfast.data.load import load
from holdfast.data.options import Options, at_home
from holdfast.data.paths import Paths
from holdfast.data.printable import printable
from holdfast.data.resize import resize
from holdfast.data.splits import ArraySplit, Dataset, FileSplit, Split
from holdfast.data.validate import refuse
from holdfast.errors import require

WITH_PARTS = (".npz", ".csv", ".parquet")
"""Files of pictures that may say of each which part it belongs to."""


def open_pictures(
    data: str | Path | Split | Dataset,
    *,
    root: str | Path | None = None,
    split: str | None = None,
    usual: str = "train",
    shape: tuple[int, int, int] | None = None,
    image_size: int | None = None,
    terms: Mapping[str, Any] | None = None,
    note: Callable[[str], None] | None = None,
) -> Split:
    """A split of pictures; they need no labels, and have -1 where there are none.

    A folder is taken as a heap of pictures, wherever they lie in it, and an .npz file or a table without parts as a
    whole, in its order. split: which part of anything else, ``usual`` by default; a file without parts is split as
    training splits it. Of a set with anomalies, ``train`` is its unlabelled part and ``test`` all that is normal in its
    tests.
    shape: (C, H, W) that a detector or model takes; pictures are brought to its size, and grey ones are shown three
    times over to what takes colour. Never the other way: what takes grey would judge a colour picture by what is left
    of it and say nothing.
    terms: what else :func:`holdfast.data.load` is told of anything that it has to split, such as a data_seed.
    note: told how many rows of a file are left out where nobody chose a part of it.
    """
    if isinstance(data, Dataset):
        return _part(data, split or usual)
    require(
        split is None or not is_heap(data),
        f"split {split!r} is for data that has parts, and {_shown(data)} is taken whole; leave it out",
    )
    if not isinstance(data, (str, Path)):
        return data
    path = at_home(data)
    if holds_anomalies(path):
        return _of_anomalies(read_anomalies(path), split or usual)
    if shape is not None:
        image_size = shape[1] if shape[1] == shape[2] else None
    options = Options(None if root is None else at_home(root), image_size)
    if path.is_dir():
        pictures = _of_folder(path, options)
    elif path.suffix.lower() in WITH_PARTS and path.is_file():
        pictures = _of_file(path, options, split, usual, terms or {}, note)
    else:
        pictures = _of_set(data, options, split or usual, terms or {})
    pictures = _in_colours(pictures, None if shape is None else shape[0])
    return pictures if shape is None else brought_to(pictures, shape[1:])


def is_heap(data: str | Path | Split | Dataset) -> bool:
    """Whether data is taken whole, whatever parts there are elsewhere: a folder, or a split in memory."""
    return at_home(data).is_dir() if isinstance(data, (str, Path)) else not isinstance(data, Dataset)


def _shown(data: object) -> str:
    return f"the folder {printable(data)}" if isinstance(data, (str, Path)) else "a split in memory"


def _of_set(data: str | Path, options: Options, split: str, terms: Mapping[str, Any]) -> Split:
    return _part(load(data, root=options.root, image_size=options.image_size, least_classes=1, **terms), split)


def _of_folder(folder: Path, options: Options) -> Split:
    found = images_under(folder)
    require(bool(found), f"{printable(folder)} holds no images; give a folder with some")
    none = torch.full((len(found),), -1)
    return _of_files(Files(Paths(found), none, none), options.image_size)


def _of_file(
    path: Path,
    options: Options,
    split: str | None,
    usual: str,
    terms: Mapping[str, Any],
    note: Callable[[str], None] | None,
) -> Split:
    parts = _parts(path, options.root)
    if split is not None and (len(parts) == 1 or split not in parts):
        return _of_set(path, options, split, terms)
    name = next(iter(parts)) if len(parts) == 1 else split or usual
    require(name in parts, f"{printable(path)} has no {name} part; choose with split: {', '.join(parts)}")
    part, side = parts[name], options.image_size
    if note is not None and split is None and len(parts) > 1:
        rows = sum(len(own.labels) for own in parts.values())
        note(
            f"{printable(path)} has parts, and only the {name} part is taken: {len(part.labels)} of {rows} rows; "
            "--split chooses another"
        )
    if isinstance(part, Files):
        return _of_files(part, side)
    return part if side is None else brought_to(part, (side, side))


def _parts(path: Path, root: Path | None) -> Mapping[str, ArraySplit | Files]:
    """What a file says belongs together, by name, in the order of the file."""
    if path.suffix.lower() == ".npz":
        return arrays.read_pictures(path)
    listing = image_tables.scan_unlabelled(path, root)
    found = {name: files for name, files in listing.splits.items() if len(files.paths)}
    refuse([*listing.problems, *([] if found else ["there is no sample"])], listing.name)
    return found


def _of_files(files: Files, image_size: int | None) -> FileSplit:
    size, channels, _ = common_shape(files.paths, image_size)
    return FileSplit(files.paths, files.labels, files.groups, size=size, channels=channels)


def _in_colours(pictures: Split, channels: int | None) -> Split:
    """Pictures with so many channels, which grey ones can have without loss; as many as they need without a number."""
    if isinstance(pictures, ArraySplit) and pictures.shape[0] == 1 and channels == 3:
        return replace(pictures, images=pictures.images.expand(-1, 3, -1, -1))
    if not isinstance(pictures, FileSplit):
        return pictures
    if channels == 3:
        return replace(pictures, channels=3)
    # Every header is looked at: the few that tell a set's size may all be grey.
    coloured = next((path for path in pictures.paths if peek(path)[1] not in GREY_MODES), None)
    if coloured is None:
        return replace(pictures, channels=1)
    require(
        channels is None,
        f"{printable(coloured)} is in colour, and what is to look at it takes grey images; convert it, or leave it out",
    )
    return replace(pictures, channels=3)


def brought_to(pictures: Split, size: tuple[int, int]) -> Split:
    """Pictures at another size, as training brings them to it."""
    if isinstance(pictures, FileSplit):
        return replace(pictures, size=size)
    if isinstance(pictures, ArraySplit):
        return replace(pictures, images=resize(pictures.images, size))
    return pictures


def _of_anomalies(data: AnomalySet, split: str) -> Split:
    if split == "train":
        return data.unlabeled
    if split == "labeled":
        return data.labeled
    require(split == "test", f"a set with anomalies has no split {split!r}; choose train, labeled or test")
    pooled = data.pooled()
    return pooled.subset((~data.anomalous(pooled)).nonzero().flatten())


def _part(data: Dataset, split: str) -> Split:
    found: Split | None = {"train": data.train, "val": data.val, "test": data.test}.get(split)
    require(found is not None, f"{data.name} has no split {split!r}; choose train, val or test")
    assert found is not None
    return found
