"""Pictures to be scored: any folder, flat or nested, with or without classes, or whatever ``data.load`` takes."""

from __future__ import annotations

from pathlib import Path

import torch

from holdfast.data import load
from holdfast.data.anomalies import AnomalySet, holds_anomalies, read_anomalies
from holdfast.data.folders import images_under
from holdfast.data.listing import common_shape
from holdfast.data.options import at_home
from holdfast.data.paths import Paths
from holdfast.data.printable import printable
from holdfast.data.splits import Dataset, FileSplit, Split
from holdfast.errors import require


def open_pictures(
    data: str | Path | Split | Dataset,
    *,
    root: str | Path | None = None,
    split: str = "train",
    shape: tuple[int, int, int] | None = None,
    image_size: int | None = None,
) -> Split:
    """A split of pictures.

    A folder is taken as a heap of pictures, wherever they lie in it. split: which part of a named set, an .npz file
    or a table; of a set with anomalies, ``train`` is its unlabelled part and ``test`` all that is normal in its tests.
    shape: (C, H, W) that a detector wants; pictures are brought to its size, but never to its colours: a grey detector
    would score a colour picture on what is left of it and say nothing.
    """
    if isinstance(data, Dataset):
        return _part(data, split)
    if not isinstance(data, (str, Path)):
        return data
    folder = at_home(data)
    if holds_anomalies(folder):
        return _of_anomalies(read_anomalies(folder), split)
    if not folder.is_dir():
        if shape is not None and shape[1] == shape[2]:
            image_size = shape[1]
        return _part(load(data, root=root, image_size=image_size, least_classes=1), split)
    found = images_under(folder)
    require(bool(found), f"{printable(folder)} holds no images; give a folder with some")
    size, channels, _ = common_shape(Paths(found), image_size)
    if shape is not None:
        size = shape[1:]
    none = torch.full((len(found),), -1)
    return FileSplit(Paths(found), none, none, size=size, channels=channels)


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
