"""Arrays in an .npz file, by their names, as a data set; and files of a set with anomalies (.npz or .npy)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from holdfast.data.array_files import open_npz, text_array
from holdfast.data.listing import SPLITS, ReaderOptions
from holdfast.errors import HoldfastError, cut, require
from holdfast.parts import reader
from holdfast.printable import printable
from holdfast.types import Note

if TYPE_CHECKING:
    from holdfast.data.images import Array
    from holdfast.data.splits import ArraySplit, Dataset

KNOWN = (*(f"{k}_{s}" for s in SPLITS for k in ("x", "y", "group")), "classes", "group_names", "group_attribute")


def read_unlabelled(path: Path, options: ReaderOptions) -> Dataset:
    """The parts of such a file that have images; their labels are -1 where it has none."""
    from holdfast.data.splits import Dataset

    arrays, _ = unpack(path)
    origin = printable(path)
    found = {split: _split(arrays, split, origin) for split in SPLITS if f"x_{split}" in arrays}
    require(bool(found), f"{origin} has no images; call its arrays x_train, x_val or x_test")
    first = next(iter(found.values()))
    highest = max((int(own.labels.max()) for own in found.values() if len(own)), default=-1)
    named = _names(arrays["classes"], f"{origin}: classes") if "classes" in arrays else ()
    samples = sum(map(len, found.values()))
    remedy = "number the classes 0, 1, 2, ..."
    possible = highest < max(samples, len(named))
    require(possible, f"{origin}: label {highest} is more than {samples} samples can need; {remedy}")
    classes = named if len(named) > highest else tuple(map(str, range(highest + 1)))
    parts: dict[str, Any] = {"train": first.subset(slice(0, 0)), **found}  # type: ignore[arg-type]
    return Dataset(printable(path.name), classes, **parts)


@reader(
    "npz",
    about="NumPy arrays: x_train, y_train, x_test, y_test, ... in an .npz file, or a set with anomalies (.npz, .npy).",
    suffixes=(".npz", ".npy"),
    unlabelled=read_unlabelled,
    order=800,
)
def read_npz(path: Path, options: ReaderOptions) -> Dataset:
    """An .npz with x_train, y_train and, optionally, x_test, y_test, x_val, y_val, group_train, group_val,
    group_test, classes, group_names and group_attribute (arrays of text). Nothing is unpickled.
    """
    from holdfast.data.anomalies import holds_anomalies, read_anomalies

    if holds_anomalies(path):
        return read_anomalies(path).to_train_on(printable(path.name), image_size=options.image_size)
    arrays, ignored = unpack(path)
    name, origin = printable(path.name), printable(path)
    return assemble(arrays, name=name, origin=origin, image_size=options.image_size, others=map(printable, ignored))


def unpack(path: Path) -> tuple[dict[str, Array], list[str]]:
    """(the arrays that have a meaning here, names of the others, which are not read)."""
    with open_npz(path) as file:
        others = [name for name in file.names if name not in KNOWN]
        return {name: file.read(name) for name in file.names if name in KNOWN}, others


def assemble(
    arrays: Mapping[str, Array],
    *,
    name: str,
    origin: str,
    classes: Sequence[str] | None = None,
    image_size: int | None = None,
    others: Iterable[str] = (),
) -> Dataset:
    """A data set from arrays named as in :func:`read_npz`.

    classes: names for a file that brings none of its own. others: names of arrays that were not read.
    """
    from holdfast.data.images import resize
    from holdfast.data.splits import Dataset
    from holdfast.data.usable_data import consistent

    unread = ", ".join(others)
    text = f"arrays beyond images, labels and groups: {unread}"
    note = Note("arrays-not-read", text, "an audit takes them with --group")
    there = cut(", ".join(filter(None, (*arrays, unread)))) or "none"
    made: dict[str, Any] = {}
    for split in SPLITS:
        keys = (f"x_{split}", f"y_{split}")
        absent = [key for key in keys if key not in arrays]
        if absent and (split == "train" or len(absent) == 1 or f"group_{split}" in arrays):
            remedy = "Call images x_train, x_val, x_test and labels y_train, y_val, y_test"
            raise HoldfastError(f"{origin} has no array {' and no '.join(absent)}; it has: {there}. {remedy}")
        if not absent:
            made[split] = _split(arrays, split, origin)
    if image_size is not None:
        made = {split: replace(own, images=resize(own.images, image_size)) for split, own in made.items()}
    named = _names(arrays["group_names"], f"{origin}: group_names") if "group_names" in arrays else ()
    known = _class_names(arrays, made, origin, classes)
    words: tuple[str, ...] = ()
    if "group_attribute" in arrays:  # a text of its own, or an array of one
        words = text_array(arrays["group_attribute"].reshape(-1), f"{origin}: group_attribute")
    said: dict[str, Any] = {"group_names": named, "group_attribute": printable(cut(" ".join(words)))}
    return consistent(Dataset(name, known, **made, **said, notes=(note,) if unread else ()))


def _split(arrays: Mapping[str, Array], split: str, origin: str) -> ArraySplit:
    from holdfast.data.images import to_images, to_whole
    from holdfast.data.splits import ArraySplit

    images = to_images(arrays[f"x_{split}"], f"{origin}: x_{split}")
    labels = groups = None
    if f"y_{split}" in arrays:
        labels = to_whole(arrays[f"y_{split}"], f"{origin}: y_{split}", least=0)
    if f"group_{split}" in arrays:
        groups = to_whole(arrays[f"group_{split}"], f"{origin}: group_{split}", least=-1)
    return ArraySplit(images, labels, groups, origin=f"{origin}:{split}")


def _class_names(
    arrays: Mapping[str, Array], made: Mapping[str, ArraySplit], origin: str, given: Sequence[str] | None
) -> tuple[str, ...]:
    import torch

    present = torch.tensor(sorted(set(made["train"].labels.tolist())))
    for split, own in made.items():
        extra = own.labels[~torch.isin(own.labels, present)]
        lost = f"label {int(extra[0]) if len(extra) else ''}, which y_train lacks"
        remedy = "remove these samples, or add training samples of that class"
        require(not len(extra), f"{origin}: y_{split} has {lost}; {remedy}")
    if "classes" in arrays:
        return _names(arrays["classes"], f"{origin}: classes")
    if given is not None:
        return tuple(given)
    gaps = (present != torch.arange(len(present))).nonzero()
    if len(gaps):
        gap = f"class {int(gaps[0])} has no training sample, though y_train goes up to {int(present[-1])}"
        raise HoldfastError(f"{origin}: {gap}; number the classes 0..{len(present) - 1}")
    return tuple(str(label) for label in range(len(present)))


def _names(values: Array, what: str) -> tuple[str, ...]:
    from holdfast.data.usable_data import check_once

    names = text_array(values, what)
    check_once(names, what)
    return names
