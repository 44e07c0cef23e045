"""Arrays in an .npz file, checked number by number before they become a data set."""

from __future__ import annotations

import zipfile
import zlib
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from holdfast.data.printable import printable
from holdfast.data.resize import resize
from holdfast.data.splits import ArraySplit, Dataset
from holdfast.errors import HoldfastError, require

Array = npt.NDArray[Any]

SPLITS = ("train", "val", "test")
KNOWN = (*(f"{k}_{s}" for s in SPLITS for k in ("x", "y", "group")), "classes", "group_names")


def read(path: Path, *, image_size: int | None = None) -> Dataset:
    """An .npz with x_train, y_train and, optionally, x_test, y_test, x_val, y_val, group_train, group_val,
    group_test, classes and group_names (arrays of text). Nothing is unpickled.
    """
    arrays, ignored = unpack(path)
    return assemble(
        arrays, name=printable(path.name), origin=printable(path), image_size=image_size, others=map(printable, ignored)
    )


def read_pictures(path: Path) -> dict[str, ArraySplit]:
    """The parts of such a file that have images; their labels are -1 where it has none."""
    arrays, _ = unpack(path)
    found = [split for split in SPLITS if f"x_{split}" in arrays]
    origin = printable(path)
    require(bool(found), f"{origin} has no images; call its arrays x_train, x_val or x_test")
    return {split: _split(arrays, split, origin) for split in found}


def unpack(path: Path) -> tuple[dict[str, Array], list[str]]:
    """(the arrays that have a meaning here, names of the others, which are not read)."""
    shown = printable(path)
    if not zipfile.is_zipfile(path):
        raise HoldfastError(f"{shown} is no .npz file, or a damaged one; write it with numpy.savez")
    name = ""
    try:
        with np.load(path, allow_pickle=False) as archive:
            arrays = {}
            for name in archive.files:
                if name in KNOWN:
                    arrays[name] = archive[name]
                    if not isinstance(arrays[name], np.ndarray):  # numpy hands out the bytes of what is no .npy file
                        raise ValueError("it is no array")
            return arrays, [other for other in archive.files if other not in KNOWN]
    except (OSError, ValueError, EOFError, MemoryError, zipfile.BadZipFile, zlib.error) as error:
        if "allow_pickle" in str(error):
            raise HoldfastError(
                f"{shown}: {name} holds Python objects, which are never unpickled; "
                f"save it as numbers, such as {name}.astype('int64'), or as plain text for names"
            ) from error
        raise HoldfastError(f"cannot read {name} of {shown}: {error}; write the file again") from error


def assemble(
    arrays: Mapping[str, Array],
    *,
    name: str,
    origin: str,
    classes: Sequence[str] | None = None,
    image_size: int | None = None,
    others: Iterable[str] = (),
) -> Dataset:
    """A data set from arrays named as in :func:`read`.

    classes: names for a file that brings none of its own. others: names of arrays that were not read.
    """
    unread = ", ".join(others)
    note = f"arrays beyond images, labels and groups: {unread}; an audit takes them with --group"
    there = ", ".join(filter(None, (*arrays, unread))) or "none"
    made: dict[str, ArraySplit] = {}
    for split in SPLITS:
        keys = (f"x_{split}", f"y_{split}")
        absent = [key for key in keys if key not in arrays]
        if absent and (split == "train" or len(absent) == 1 or f"group_{split}" in arrays):
            raise HoldfastError(
                f"{origin} has no array {' and no '.join(absent)}; it has: {there}. Call images x_train, x_val, x_test "
                "and labels y_train, y_val, y_test"
            )
        if not absent:
            made[split] = _split(arrays, split, origin)
    shapes = {split: own.shape for split, own in made.items()}
    for split, shape in shapes.items():
        require(
            shape == shapes["train"],
            f"{origin}: images (C, H, W) of x_{split} are {shape}, those of x_train {shapes['train']}; make them equal",
        )
    if image_size is not None:
        made = {s: ArraySplit(resize(o.images, image_size), o.labels, o.groups, o.origin) for s, o in made.items()}
    return Dataset(
        name=name,
        classes=_class_names(arrays, made, origin, classes),
        train=made["train"],
        val=made.get("val"),
        test=made.get("test"),
        group_names=_group_names(arrays, made, origin),
        notes=(note,) if unread else (),
    )


def to_images(x: Array, what: str) -> Tensor:
    """Images as uint8 (N, C, H, W) from (N, H, W), (N, H, W, C) or (N, C, H, W), uint8 or float in [0, 1].

    C is 1 or 3. Where both the last and the second axis could be channels, the last one is taken.
    """
    if x.ndim == 3:
        x = x[:, None]
    elif x.ndim == 4 and x.shape[3] in (1, 3):
        x = x.transpose(0, 3, 1, 2)
    elif x.ndim != 4 or x.shape[1] not in (1, 3):
        raise HoldfastError(
            f"{what} has shape {x.shape}; images are (N, H, W), (N, H, W, C) or (N, C, H, W) with C 1 or 3"
        )
    require(x.size > 0, f"{what} has shape {x.shape} as (N, C, H, W): there is no pixel in it")
    if x.dtype == np.uint8:
        return torch.from_numpy(np.ascontiguousarray(x))
    if x.dtype.kind != "f":
        raise HoldfastError(
            f"{what} is of type {x.dtype}; give uint8 (as .astype('uint8') makes it), or float in [0, 1]"
        )
    finite = np.isfinite(x)
    if not finite.all():
        bad = np.argwhere(~finite)
        raise HoldfastError(
            f"{what} has {len(bad)} values that are NaN or infinite, the first in image {bad[0][0]} "
            f"(channel, row, column {tuple(bad[0][1:].tolist())}); repair or remove these images"
        )
    low, high = float(x.min()), float(x.max())
    require(
        low >= 0 and high <= 1,
        f"{what} has floats from {low:g} to {high:g}; scale them to [0, 1], or give uint8 in 0..255",
    )
    return torch.from_numpy(np.rint(x.astype(np.float32, order="C") * 255).astype(np.uint8))


def to_whole(values: Array, what: str, *, least: int) -> Tensor:
    """Labels or groups as int64 (N,) from (N,) or (N, 1) whole numbers of any type."""
    if values.ndim == 2 and values.shape[1] == 1:
        values = values[:, 0]
    require(
        values.ndim == 1,
        f"{what} has shape {values.shape}; give one whole number a sample (one-hot rows: take argmax(1))",
    )
    require(
        values.dtype.kind in "iubf",
        f"{what} is of type {values.dtype}; give whole numbers, such as type int64",
    )
    if values.dtype.kind == "f":
        # from 2**53 on a float cannot tell neighbouring whole numbers apart
        odd = ~np.isfinite(values) | (values != np.rint(values)) | (np.abs(values) > 2**53)
        if odd.any():
            at = int(odd.argmax())
            raise HoldfastError(f"{what} has {values[at]} at position {at}; give whole numbers")
    whole = values.astype(np.int64)
    if (whole < least).any():
        at = int((whole < least).argmax())
        raise HoldfastError(f"{what} has {values[at]} at position {at}; the least allowed is {least}")
    return torch.from_numpy(whole)


def _split(arrays: Mapping[str, Array], split: str, origin: str) -> ArraySplit:
    images = to_images(arrays[f"x_{split}"], f"{origin}: x_{split}")
    labels = groups = torch.full((len(images),), -1)
    if f"y_{split}" in arrays:
        labels = to_whole(arrays[f"y_{split}"], f"{origin}: y_{split}", least=0)
    if f"group_{split}" in arrays:
        groups = to_whole(arrays[f"group_{split}"], f"{origin}: group_{split}", least=-1)
    for name, own in ((f"y_{split}", labels), (f"group_{split}", groups)):
        require(
            len(own) == len(images),
            f"{origin}: x_{split} has {len(images)} images but {name} has {len(own)} values; make them equal",
        )
    return ArraySplit(images, labels, groups, origin=f"{origin}:{split}")


def _class_names(
    arrays: Mapping[str, Array], made: Mapping[str, ArraySplit], origin: str, given: Sequence[str] | None
) -> tuple[str, ...]:
    present = torch.tensor(sorted(set(made["train"].labels.tolist())))
    for split, own in made.items():
        alien = own.labels[~torch.isin(own.labels, present)]
        require(
            not len(alien),
            f"{origin}: y_{split} has label {int(alien[0]) if len(alien) else ''}, which y_train lacks; "
            "remove these samples, or add training samples of that class",
        )
    if "classes" in arrays:
        return _names(arrays["classes"], f"{origin}: classes")
    if given is not None:
        return tuple(given)
    gaps = (present != torch.arange(len(present))).nonzero()
    if len(gaps):
        raise HoldfastError(
            f"{origin}: class {int(gaps[0])} has no training sample, though y_train goes up to "
            f"{int(present[-1])}; number the classes 0..{len(present) - 1}"
        )
    return tuple(str(label) for label in range(len(present)))


def _group_names(arrays: Mapping[str, Array], made: Mapping[str, ArraySplit], origin: str) -> tuple[str, ...]:
    highest = max(int(own.groups.max()) for own in made.values())
    if "group_names" in arrays:
        names = _names(arrays["group_names"], f"{origin}: group_names")
        require(
            highest < len(names),
            f"{origin}: group {highest} has no name; group_names has {len(names)}: add to them",
        )
        return names
    samples = sum(len(own) for own in made.values())
    require(
        highest < samples,
        f"{origin}: group {highest} is more than {samples} samples can need; number the groups 0, 1, 2, ...",
    )
    return tuple(str(group) for group in range(highest + 1))


def _names(values: Array, what: str) -> tuple[str, ...]:
    require(
        values.ndim == 1 and values.dtype.kind in "US",
        f"{what} has shape {values.shape} and type {values.dtype}; give a one-dimensional array of text",
    )
    names = tuple(printable(str(name)) for name in values.astype(str))
    twice = [name for name in names if names.count(name) > 1]
    require(not twice, f"{what} has {twice[0] if twice else ''!r} more than once; give each a name of its own")
    return names
