"""From what a user has in hand in Python to a data set: arrays, torch data sets and loaders, Hugging Face data sets.

``load`` calls :func:`read_given` for everything that is neither a name nor a path. Open this file to take another kind
of object, or to change what of one is used. Images stay where they are: an object is asked for them when they are read.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import DataLoader, IterableDataset, SubsetRandomSampler, TensorDataset
from torch.utils.data import Dataset as TorchDataset

from holdfast.data.given_items import GivenPart, is_hugging_face, name_of, numbered, of_hugging_face, of_items
from holdfast.data.images import resize, to_images
from holdfast.data.listing import SPLIT_FOLDERS, ReaderOptions
from holdfast.data.readers.npz import assemble
from holdfast.data.splits import ArraySplit, Dataset, Split
from holdfast.data.tables import name_order
from holdfast.errors import HoldfastError, brief, require
from holdfast.printable import printable
from holdfast.types import Note

KINDS: Final = (
    "a name, a path, (images, labels) arrays, a torch Dataset or DataLoader, a Hugging Face Dataset or DatasetDict, "
    "or {'train': ..., 'test': ...} of these"
)


def read_given(given: Any, options: ReaderOptions, *, labelled: bool = True, name: str | None = None) -> Dataset:
    """A data set of an object; nothing is resized or refused yet. labelled: whether every image needs a label, else it
    has -1 without one. name: of the set, instead of the object's own."""
    if isinstance(given, Mapping) and any(str(key).startswith("x_") for key in given):
        arrays = {str(key): _numpy(value) for key, value in given.items()}
        return assemble(arrays, name=name or "arrays", origin="arrays", image_size=options.image_size)
    notes: list[Note] = []
    parts = _parts(given, options, notes)
    if labelled:
        for split, part in parts.items():
            require(bool(part.classes) or not len(part.images), f"the {split} images have no labels; {_needed(given)}")
    if options.image_size is not None:
        parts = {split: _at_size(part, options.image_size) for split, part in parts.items()}
    first = next(iter(parts.values()))
    parts = {"train": replace(first, images=first.images.subset(torch.arange(0)), notes=())} | parts
    classes, untrainable = _all_classes(parts)
    groups = tuple(name_order({name for part in parts.values() for name in part.groups}))
    made: dict[str, Any] = {
        split: _renumbered(part.images, labels=(part.classes, classes), groups=(part.groups, groups))
        for split, part in parts.items()
    }
    said = tuple(dict.fromkeys([*notes, *(note for part in parts.values() for note in part.notes)]))
    shown = printable(name or name_of(given))
    plain: dict[str, Any] = {"classes": tuple(map(printable, classes)), "group_names": tuple(map(printable, groups))}
    return Dataset(shown, **plain, **made, notes=said, untrainable=tuple(untrainable))


def is_given(data: object) -> bool:
    """Whether data is an object to read, and not a name, a path or a set or split of ours."""
    ours = isinstance(data, str | Path | Dataset) or (hasattr(data, "read") and hasattr(data, "describe"))
    return data is not None and not ours


def _needed(given: Any) -> str:
    if is_hugging_face(given) or isinstance(given, Mapping):
        return "name their column with columns={'label': ...}"
    return "items must be (image, label) or a mapping with the keys image and label, and arrays (images, labels)"


def _parts(given: Any, options: ReaderOptions, notes: list[Note]) -> dict[str, GivenPart]:
    if not isinstance(given, Mapping):
        part = _part(given, options)
        return {part.says or "train": part}
    require(bool(given), f"an empty {type(given).__name__} is not a data set; give {KINDS}")
    known = {str(key): SPLIT_FOLDERS.get(str(key).lower()) for key in given}
    if len(known) == 1 and is_hugging_face(given):
        known = {key: split or "train" for key, split in known.items()}
    lost = [key for key, split in known.items() if split is None]
    if lost and (not is_hugging_face(given) or len(lost) == len(known)):
        raise HoldfastError(f"unknown split {brief(lost[0])}; call the splits train, val and test")
    if lost:
        notes.append(Note("splits-left-out", f"splits beside train, val and test are left out: {', '.join(lost)}"))
    twice = [split for split in known.values() if split and [*known.values()].count(split) > 1]
    require(not twice, f"two splits are the {twice[0] if twice else ''} split; keep one of them")
    return {split: _part(given[key], options) for key, split in known.items() if split is not None}


def _part(given: Any, options: ReaderOptions) -> GivenPart:
    if isinstance(given, DataLoader):
        return _of_loader(given, options)
    streamed = isinstance(given, IterableDataset) or type(given).__name__ == "IterableDataset"
    remedy = "give a map-style one, with a length and items by position (Hugging Face: leave streaming=True out)"
    require(not streamed, f"a {type(given).__name__} has its images in one order only; {remedy}")
    if is_hugging_face(given):
        return of_hugging_face(given, options)
    if isinstance(given, Tensor | np.ndarray):
        return _of_arrays((given,), options)
    if isinstance(given, tuple | list) and given and isinstance(given[0], Tensor | np.ndarray) and given[0].ndim >= 3:
        return _of_arrays(given, options)
    if isinstance(given, TensorDataset):
        return _of_arrays(given.tensors, options)
    if isinstance(given, TorchDataset) or (hasattr(given, "__getitem__") and hasattr(given, "__len__")):
        return of_items(given, options)
    raise HoldfastError(f"data must be {KINDS}, got {type(given).__name__}")


def _of_loader(loader: DataLoader[Any], options: ReaderOptions) -> GivenPart:
    """A loader's data set. A sampler that names positions decides which samples there are; all else is ours to do."""
    from torch.utils.data import default_collate, default_convert

    data, sampler = loader.dataset, loader.sampler
    unused = ["workers"] if loader.batch_size is None else [f"batch size ({loader.batch_size})", "workers"]
    kept = isinstance(sampler, SubsetRandomSampler)
    kind = type(sampler).__name__
    level: Any = "note"
    if kind not in ("SequentialSampler", "RandomSampler", "_InfiniteConstantSampler") and not kept:
        unused, level = [*unused, f"sampler ({kind})"], "warning"
    elif kind != "SequentialSampler":
        unused.append("shuffling")
    if loader.collate_fn not in (default_collate, default_convert):
        own = getattr(loader.collate_fn, "__name__", type(loader.collate_fn).__name__)
        unused, level = [*unused, f"collate function ({own})"], "warning"
    used = "data set, transforms" + (" and the positions of its sampler" if kept else "")
    text = f"of the DataLoader its {used} are used, and not its {', '.join(unused)}"
    note = Note("loader-parts-unused", text, "batch_size, workers and seed choose them here", level)
    part = _part(data, options)
    if isinstance(sampler, SubsetRandomSampler):
        index = torch.tensor(sorted({int(i) for i in sampler.indices}), dtype=torch.int64)
        part = replace(part, images=part.images.subset(index))
    return replace(part, notes=(*part.notes, note))


def _of_arrays(given: Sequence[Any], options: ReaderOptions) -> GivenPart:
    require(len(given) <= 3, f"arrays are (images, labels) or (images, labels, groups), got {len(given)} of them")
    images, labels, groups = [*given, None, None][:3]
    pixels = to_images(images, "images")
    for name, own in (("labels", labels), ("groups", groups)):
        count = len(pixels) if own is None else len(own)
        require(count == len(pixels), f"there are {len(pixels)} images and {count} {name}; make them equal")
    found, classes = numbered(labels, "label", len(pixels))
    own_groups, names = numbered(groups, "group", len(pixels))
    return GivenPart(ArraySplit(pixels, found, own_groups, origin="array"), classes, names)


def _all_classes(parts: Mapping[str, GivenPart]) -> tuple[list[str], list[str]]:
    """The classes of all splits, those of training first; and why it cannot be trained on, if others have more."""
    trained = parts["train"].classes if len(parts["train"].images) else ()
    extra = {name: split for split, part in reversed([*parts.items()]) for name in part.classes if name not in trained}
    if not len(parts["train"].images):
        first = next((list(part.classes) for part in parts.values() if part.classes), [])
        return first + name_order({*extra} - {*first}), []
    remedy = "is not among those of the training split; remove these samples, or add some to train on"
    order = name_order({*extra})
    return [*trained, *order], [f"class {brief(name)} of the {extra[name]} split {remedy}" for name in order]


def _renumbered(images: Split, **numbers: tuple[Sequence[str], Sequence[str]]) -> Split:
    """The same images with numbers of all splits instead of those of their own."""
    changed: dict[str, Tensor] = {}
    for name, (own, every) in numbers.items():
        place = {word: k for k, word in enumerate(every)}
        table = torch.tensor([place[word] for word in own] + [-1], dtype=torch.int64)
        changed[name] = table[getattr(images, name)]  # -1, unknown, is the last
    return replace(images, **changed)  # type: ignore[type-var]


def _at_size(part: GivenPart, size: int) -> GivenPart:
    images = part.images
    return (
        part
        if not isinstance(images, ArraySplit)
        else replace(part, images=replace(images, images=resize(images.images, size)))
    )


def _numpy(value: Any) -> Any:
    return value.detach().cpu().numpy() if isinstance(value, Tensor) else np.asarray(value)
