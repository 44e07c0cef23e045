"""Sets with anomalies among normal images: the report's nested dictionary of arrays, read and written.

It is written without pickle, and read without running what it holds. Such sets are made in making.py.
"""

from __future__ import annotations

import io
import json
import zipfile
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import IO, Any, Final

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from holdfast.data.array_files import open_npz, read_array, refusing, text_array
from holdfast.data.images import Array, resize, to_images
from holdfast.data.plain_pickles import PickledArray, find_arrays, load_plain
from holdfast.data.splits import ArraySplit, Dataset
from holdfast.errors import HoldfastError, brief, cut, require
from holdfast.files import at_home, exists, write_atomic
from holdfast.printable import printable
from holdfast.types import Note

SETS: Final = ("representative_set_1", "representative_set_2")
"""Names of the test sets, as the report's file has them."""
FILE = "fashion-anomalies.npz"
"""What a made set is called in its folder."""


@dataclass(frozen=True, eq=False)
class AnomalySet:
    """Normal images without and with labels, and test sets with anomalies among them.

    classes: names of the normal ones; in the test sets the label after the last of them is an anomaly.
    unlabeled: its labels are all -1. sets: the group is the kind of anomaly, -1 for normal images and where unknown.
    manifest: how the set was made; empty for one that was read.
    """

    classes: tuple[str, ...]
    unlabeled: ArraySplit
    labeled: ArraySplit
    sets: tuple[ArraySplit, ...]
    kinds: tuple[str, ...] = ()
    manifest: Mapping[str, Any] = field(default_factory=dict)

    def anomalous(self, split: ArraySplit) -> Tensor:
        """(N,) whether each image of a test set is an anomaly."""
        return split.labels == len(self.classes)

    def pooled(self) -> ArraySplit:
        """All test sets as one."""
        parts = ("images", "labels", "groups")
        images, labels, groups = (torch.cat([getattr(s, part) for s in self.sets]) for part in parts)
        return ArraySplit(images, labels, groups, "pooled")

    def normal_tests(self) -> ArraySplit:
        """All that is normal in the test sets."""
        pooled = self.pooled()
        return pooled.subset((~self.anomalous(pooled)).nonzero().flatten())

    def to_train_on(self, name: str, *, image_size: int | None = None) -> Dataset:
        """The set for a classifier: labelled images to train on, what is normal in the test sets to test on."""
        parts = [self.labeled, self.normal_tests(), self.unlabeled]
        if image_size is not None:
            parts = [replace(s, images=resize(s.images, image_size)) for s in parts]
        train, test, unlabeled = parts
        sizes = f"{len(train)} labelled images to train on, {len(unlabeled)} without label"
        note = Note("anomaly-splits", f"{sizes}; {len(test)} normal ones to test")
        return Dataset(name, self.classes, train, test=test, notes=(note,), unlabeled=unlabeled)


def save_anomalies(made: AnomalySet, folder: str | Path) -> Path:
    """The set in the report's layout, as plain arrays (no pickle), with a manifest beside it."""
    folder = Path(folder)
    width = len(made.classes)
    arrays: dict[str, Array] = {
        "unlabeled_data": made.unlabeled.images[:, 0].numpy(),
        "labeled_data/data": made.labeled.images[:, 0].numpy(),
        "labeled_data/labels": F.one_hot(made.labeled.labels, width).float().numpy(),
        "classes": np.array(made.classes),
        "kinds": np.array(made.kinds),
    }
    for name, split in zip(SETS, made.sets, strict=True):
        arrays[f"{name}/data"] = split.images[:, 0].numpy()
        arrays[f"{name}/labels"] = F.one_hot(split.labels, width + 1).float().numpy()
        arrays[f"{name}/kinds"] = split.groups.numpy()
    file = io.BytesIO()
    np.savez_compressed(file, **arrays)  # type: ignore[arg-type]
    path = folder / FILE
    write_atomic(path, file.getvalue())
    write_atomic(folder / "manifest.json", (json.dumps(made.manifest, indent=2) + "\n").encode())
    return path


def holds_anomalies(path: str | Path) -> bool:
    """Whether a file looks like one of :func:`read_anomalies`, without reading any of its arrays.

    An .npy file is taken for one: no other data comes in it.
    """
    path = at_home(path)
    if path.suffix.lower() == ".npy":
        return path.is_file()
    if path.suffix.lower() != ".npz" or not path.is_file():
        return False
    with open_npz(path) as file:
        names = file.names
    return "unlabeled_data" in names or (len(names) == 1 and not names[0].startswith(("x_", "y_")))


def read_anomalies(path: str | Path) -> AnomalySet:
    """The report's nested dictionary (a pickle) from .npy or .npz, or what :func:`save_anomalies` wrote."""
    path = at_home(path)
    require(exists(path), f"no such file: {printable(path)}; correct the path of the data")
    require(path.is_file(), f"{printable(path)} is a folder; give the file with the set, such as {FILE} in it")
    content = _nested(_content(path))
    shown = printable(path)
    for name in ("unlabeled_data", "labeled_data", *SETS):
        require(name in content, f"{shown} has no {name}; it has: {_listed(content)}")
    labeled, width = _labelled(content["labeled_data"], f"{shown}: labeled_data", None)
    sets = tuple(_labelled(content[name], f"{shown}: {name}", width + 1)[0] for name in SETS)
    images = to_images(_array(content["unlabeled_data"], f"{shown}: unlabeled_data"), f"{shown}: unlabeled_data")
    shapes = {s.shape for s in (labeled, *sets)} | {tuple(images.shape[1:])}
    require(len(shapes) == 1, f"{shown}: images differ in shape (C, H, W): {sorted(shapes)}; make them equal")
    arrays = {key: content[key] for key in ("classes", "kinds") if content.get(key) is not None}
    texts = {key: text_array(_array(own, f"{shown}: {key}"), f"{shown}: {key}") for key, own in arrays.items()}
    names, kinds = texts.get("classes"), texts.get("kinds", ())
    count = width if names is None else len(names)
    require(count == width, f"{shown}: there are {count} names of classes, and labels are {width} wide; name each one")
    known = max([-1, *(int(s.groups.max()) for s in sets)])
    require(not kinds or known < len(kinds), f"{shown}: kind {known} has no name; kinds has {len(kinds or ())}")
    classes = tuple(map(str, range(width))) if names is None else names
    return AnomalySet(classes, ArraySplit(images, origin=f"{shown}:unlabeled_data"), labeled, sets, kinds)


def _labelled(part: Any, what: str, width: int | None) -> tuple[ArraySplit, int]:
    """Images with one-hot labels, and how many classes there are."""
    require(isinstance(part, Mapping), f"{what} must hold data and labels, got {type(part).__name__}")
    for name in ("data", "labels"):
        require(name in part, f"{what} has no {name}; it has: {_listed(part)}")
    images = to_images(_array(part["data"], f"{what}.data"), f"{what}.data")
    one_hot = _array(part["labels"], f"{what}.labels")
    ok = one_hot.ndim == 2 and one_hot.dtype.kind in "fiub" and len(one_hot) == len(images)
    ok = ok and bool((np.isin(one_hot, (0, 1)) & (one_hot.sum(1, keepdims=True) == 1)).all())
    rows = f"one-hot rows, one for each of {len(images)} images" + ("" if width is None else f", {width} wide")
    ok = ok and (width is None or one_hot.shape[1] == width)
    require(ok, f"{what}.labels must be {rows}; got shape {one_hot.shape}")
    labels = torch.from_numpy(one_hot.argmax(1).astype(np.int64))
    groups = None if "kinds" not in part else _array(part["kinds"], f"{what}.kinds")
    return ArraySplit(images, labels, groups, what), one_hot.shape[1]


def _array(value: Any, what: str) -> Array:
    if isinstance(value, PickledArray):
        require(value.array is not None, f"{what} is an array of Python objects; save it as numbers")
        value = value.array
    require(isinstance(value, np.ndarray), f"{what} must be an array, got {type(value).__name__}")
    array: Array = value
    return array


def _nested(flat: Mapping[str, Any]) -> dict[str, Any]:
    """``a/b`` as ``a`` that holds ``b``."""
    nested: dict[str, Any] = {}
    for name, value in flat.items():
        head, _, tail = _key(name).partition("/")
        if not tail:
            nested[head] = value
        elif isinstance(inner := nested.setdefault(head, {}), dict):  # else there is an array of that name too
            inner[tail] = value
    return nested


def _listed(part: Mapping[Any, Any]) -> str:
    return cut(", ".join(printable(_key(name)) for name in part)) or "nothing"


def _key(name: Any) -> str:
    return name if isinstance(name, str) else brief(name)


def _content(path: Path) -> dict[str, Any]:
    with refusing(printable(path)):
        zipped = zipfile.is_zipfile(path)
    if zipped:
        with open_npz(path) as archive:
            values = {name: archive.read(name, objects=_unpickle_arrays) for name in archive.names}
    else:
        with refusing(printable(path)), path.open("rb") as file:
            values = {"": read_array(file, path.stat().st_size, printable(path), objects=_unpickle_arrays)}
    only = next(iter(values.values())) if len(values) == 1 else None
    if isinstance(only, dict):
        return only
    if "" in values:
        kind = "array of Python objects" if isinstance(only, PickledArray) else type(only).__name__
        kind = f"array of shape {only.shape}" if isinstance(only, np.ndarray) else kind
        wanted = f"the dictionary of unlabeled_data, labeled_data and {' and '.join(SETS)}"
        remedy = "images alone can be given as .npz with x_train and y_train, or as a folder"
        raise HoldfastError(f"{printable(path)} holds one {kind}, not {wanted}; {remedy}")
    return values


def _unpickle_arrays(file: IO[bytes]) -> Any:
    """The report's dictionary of arrays; it is the only item of an array without dimensions."""
    value = load_plain(file, find_arrays)
    return value.items[0] if isinstance(value, PickledArray) and len(value.items) == 1 else value
