"""One split of what a user has in hand that gives its images one at a time: a torch data set or a Hugging Face one.

Open this file to change how labels, classes and groups are found in such an object. See ``given_data.py`` for the rest.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import ConcatDataset, DataLoader, Subset, TensorDataset

from holdfast.data.item_split import ItemSplit
from holdfast.data.listing import SPLIT_FOLDERS, ReaderOptions
from holdfast.data.splits import FileSplit, Paths, Split
from holdfast.data.tables import name_order
from holdfast.errors import HoldfastError, cut, first_line, require
from holdfast.printable import printable
from holdfast.types import Note

IMAGE_KEYS: Final = ("image", "img", "pixel_values", "images", "picture", "x")
LABEL_KEYS: Final = ("label", "labels", "target", "targets", "class", "category", "y")
GROUP_KEYS: Final = ("group", "groups")
"""What columns, and keys of items, are called where their type does not say what they are."""


@dataclass(frozen=True, eq=False)
class GivenPart:
    """One split as an object has it. classes, groups: what its numbers are called. says: the split it says it is."""

    images: Split
    classes: tuple[str, ...]
    groups: tuple[str, ...] = ()
    says: str | None = None
    notes: tuple[Note, ...] = ()
    declared: bool = False
    """Whether the object itself names its classes, in this order."""


def name_of(given: Any) -> str:
    """What an object's set is called: its folder or its published name, else the object's class."""
    if isinstance(given, Mapping) and given:
        return name_of(next(iter(given.values())))
    if isinstance(given, DataLoader | Subset):
        return name_of(given.dataset)
    if isinstance(given, tuple | list | Tensor | np.ndarray | TensorDataset):
        return "arrays"
    published = getattr(getattr(given, "info", None), "dataset_name", None)
    if published or not _is_image_folder(given):
        return str(published or type(given).__name__)
    folder = Path(os.path.abspath(given.root))
    return (folder.parent if folder.name.lower() in SPLIT_FOLDERS else folder).name  # photos/train is of photos


def of_items(data: Any, options: ReaderOptions) -> GivenPart:
    """A map-style data set: items by position, with its own transforms."""
    n, base, positions = len(data), *_unwrapped(data)
    says, origin = _said_split(base), type(base).__name__
    if _is_image_folder(base) and _reads_plainly(base):
        # the files themselves: read as from the plain folder, upright and at a fraction of a large JPEG's cost
        paths = [base.samples[i][0] for i in positions.tolist()]
        labels = torch.tensor([base.samples[i][1] for i in positions.tolist()], dtype=torch.int64)
        groups, names = numbered(_column(base, options, positions), "group", n)
        return GivenPart(FileSplit(Paths(paths), labels, groups), tuple(base.classes), names, says, declared=True)
    require(n > 0, f"this {origin} is empty; give one with images")
    read = ItemReader(data, options)
    known = _known_labels(data, read)
    grouped = _column(base, options, positions)
    if grouped is None and options.group and not isinstance(data[0], Mapping):
        raise HoldfastError(f"this {origin} has no attribute {options.group!r} with one group per image; give it one")
    notes: list[Note] = []
    if known is None or (grouped is None and read(0)[2] is not None):
        rows = [read(i)[1:] for i in range(n)]
        labels_found: Sequence[Any] | None = None if rows[0][0] is None else [label for label, _ in rows]
        grouped = grouped or (None if rows[0][1] is None else [group for _, group in rows])
        text = f"all {n} items of this {origin} were read once for their labels"
        notes.append(Note("items-read-for-labels", text, "an attribute 'targets' with the labels avoids that"))
    else:
        labels_found = known
    declared = getattr(base, "classes", None)
    names_given = declared if isinstance(declared, list | tuple) and all(isinstance(c, str) for c in declared) else None
    labels, classes = numbered(labels_found, "label", n, names_given)
    groups, group_names = numbered(grouped, "group", n)
    random = _is_random(read, n)
    if random:
        text = f"the transforms of this {origin} are random: every reading gives other images, held-out ones included"
        remedy = "for held-out images give a data set without them: {'train': ..., 'test': ...}"
        notes.append(Note("random-transforms", text, remedy, "warning"))
    samples = getattr(data, "samples", None)
    named = isinstance(samples, list) and len(samples) == n and isinstance(samples[0][0], str)
    images = ItemSplit(
        lambda i: read(i)[0],
        torch.arange(n),
        labels,
        groups,
        origin=origin,
        name_of=(lambda i: printable(samples[i][0])) if named and samples is not None else None,
        random=random,
    )
    return GivenPart(images, classes, group_names, says, tuple(notes), declared=names_given is not None)


@dataclass(frozen=True)
class ItemReader:
    """(image, label, group) of an item; label and group are None where it has none."""

    data: Any
    options: ReaderOptions

    def __call__(self, position: int) -> tuple[Any, Any, Any]:
        try:
            item = self.data[position]
        except Exception as error:  # the user's code may fail in any way
            what = f"item {position} of this {type(self.data).__name__} cannot be read"
            raise HoldfastError(f"{what}: {type(error).__name__}: {first_line(error)}; repair or remove it") from error
        if isinstance(item, Mapping):
            chosen = {**self.options.columns} | ({"group": self.options.group} if self.options.group else {})
            keys = {"image": IMAGE_KEYS, "label": LABEL_KEYS, "group": GROUP_KEYS}
            found = [_of_key(item, role, chosen.get(role), usual) for role, usual in keys.items()]
            there = cut(", ".join(map(str, item)))
            remedy = "say which is the image with columns={'image': ...}"
            require(found[0] is not None, f"item {position} has the keys {there}; {remedy}")
            return found[0], _scalar(found[1], position, "label"), _scalar(found[2], position, "group")
        if isinstance(item, tuple | list):
            image, label, group = [*item, None, None, None][:3]
            group = group if _is_scalar(group) else None  # metadata of other kinds
            return image, _scalar(label, position, "label"), group
        return item, None, None


def _of_key(item: Mapping[str, Any], role: str, chosen: str | None, usual: Iterable[str]) -> Any:
    if chosen is not None:
        require(chosen in item, f"items have no {chosen!r} for the {role}; they have: {cut(', '.join(map(str, item)))}")
        return item[chosen]
    return next((item[key] for key in usual if item.get(key) is not None), None)


def _is_scalar(value: Any) -> bool:
    return isinstance(value, str | int | float | np.generic) or (isinstance(value, Tensor) and value.numel() == 1)


def _scalar(value: Any, position: int, role: str) -> Any:
    shape = tuple(value.shape) if hasattr(value, "shape") else type(value).__name__
    remedy = "give one class per image (of one-hot rows argmax)"
    require(value is None or _is_scalar(value), f"the {role} of item {position} is {shape}; {remedy}")
    return value


def _unwrapped(data: Any) -> tuple[Any, Tensor]:
    """The data set inside subsets, and the positions of the samples in it."""
    positions = torch.arange(len(data))
    while isinstance(data, Subset):
        indices = torch.as_tensor(list(data.indices), dtype=torch.int64)
        positions, data = indices[positions], data.dataset
    return data, positions


def _known_labels(data: Any, read: ItemReader) -> Sequence[Any] | None:
    """Labels that a data set holds beside its images, once some items agree with them."""
    found = _held_labels(data)
    if found is None or len(found) != len(data):
        return None
    for i in sorted({0, len(data) // 2, len(data) - 1}):
        own = read(i)[1]
        if own is None or _word(own) != _word(found[i]):
            return None
    return found


def _held_labels(data: Any) -> list[Any] | None:
    if isinstance(data, Subset):
        inner = _held_labels(data.dataset)
        return None if inner is None else [inner[int(i)] for i in data.indices]
    if isinstance(data, ConcatDataset):
        each = [_held_labels(part) for part in data.datasets]
        return None if any(own is None for own in each) else [label for own in each for label in own or ()]
    change = getattr(data, "target_transform", None)
    for name in ("targets", "labels", "_labels", "y"):
        own = getattr(data, name, None)
        if isinstance(own, list | tuple | Tensor | np.ndarray) and len(own) == len(data):
            plain = own.tolist() if isinstance(own, Tensor | np.ndarray) else list(own)
            return plain if change is None else [change(label) for label in plain]
    return None


def _column(base: Any, options: ReaderOptions, positions: Tensor) -> list[Any] | None:
    """An attribute of a data set with one group per sample: the one that was asked for, or ``groups``."""
    own = getattr(base, options.group or options.columns.get("group") or "groups", None)
    if not isinstance(own, list | tuple | Tensor | np.ndarray) or len(own) != len(base):
        return None
    plain = own.tolist() if isinstance(own, Tensor | np.ndarray) else list(own)
    return [plain[i] for i in positions.tolist()]


def _is_image_folder(data: Any) -> bool:
    """Whether this is torchvision's ImageFolder, or a class of its kind."""
    return any(kind.__name__ == "DatasetFolder" for kind in type(data).__mro__) and hasattr(data, "samples")


def _reads_plainly(folder: Any) -> bool:
    """Whether an ImageFolder gives its files unchanged."""
    changed = any(getattr(folder, name, None) is not None for name in ("transform", "target_transform", "transforms"))
    own = type(folder).__getitem__.__module__ == "torchvision.datasets.folder"
    return not changed and own and getattr(folder.loader, "__module__", "") == "torchvision.datasets.folder"


def _said_split(data: Any) -> str | None:
    """The split that a data set says it is, as torchvision's do."""
    if isinstance(train := getattr(data, "train", None), bool):
        return "train" if train else "test"
    words = [getattr(data, "split", None)]
    words += [Path(data.root).name] if _is_image_folder(data) else []
    return next((SPLIT_FOLDERS[str(word).lower()] for word in words if str(word).lower() in SPLIT_FOLDERS), None)


def _is_random(read: ItemReader, n: int) -> bool:
    """Whether an image is another one when it is asked for again."""
    for i in {0, n // 2, n - 1}:
        first, second = (np.asarray(read(i)[0]) for _ in range(2))
        if first.shape != second.shape or not np.array_equal(first, second):
            return True
    return False


def is_hugging_face(data: Any) -> bool:
    return type(data).__module__.partition(".")[0] == "datasets"


def of_hugging_face(data: Any, options: ReaderOptions) -> GivenPart:
    """Columns are found by the types of their features. Without a transform the files in it are decoded here."""
    from datasets import ClassLabel
    from datasets import Image as ImageFeature

    features, n = dict(data.features), len(data)
    chosen = {**options.columns} | ({"group": options.group} if options.group else {})
    for role, column in chosen.items():
        there = cut(", ".join(features))
        require(column in features, f"there is no column {column!r} for the {role}; the columns are: {there}")
    image = chosen.get("image") or _by_type(features, ImageFeature, IMAGE_KEYS, "image")
    require(
        image is not None, f"no column holds images: {cut(', '.join(features))}; name it with columns={{'image': ...}}"
    )
    label = chosen.get("label") or _by_type(features, ClassLabel, LABEL_KEYS, "label")
    group = chosen.get("group") or next((key for key in GROUP_KEYS if key in features), None)
    plain, found = data.with_format(None), {}
    for role, own in (("label", label), ("group", group)):
        names = getattr(features.get(own), "names", None) if own else None
        found[role] = numbered(list(plain[own]) if own else None, role, n, names)
    says = SPLIT_FOLDERS.get(str(getattr(data, "split", None)).lower())
    transformed = data.format["type"] == "custom"
    if transformed:
        read = ItemReader(data, replace(options, columns={}, group=None) if image not in data[0] else options)
        fetch: Callable[[int], Any] = lambda i: read(i)[0]  # noqa: E731
    else:
        files = plain.select_columns([image])
        files = files.cast_column(image, ImageFeature(decode=False)) if _is_image(features[image]) else files
        fetch = lambda i: files[i][image]  # noqa: E731
    random = transformed and _is_random(read, n)
    text = "the transform of this Dataset is random: every reading gives other images, held-out ones included"
    note = Note("random-transforms", text, "for held-out images give a data set without it", "warning")
    (labels, classes), (groups, names_of_groups) = found["label"], found["group"]
    images = ItemSplit(fetch, torch.arange(n), labels, groups, origin=name_of(data), random=random)
    declared = label is not None and isinstance(features[label], ClassLabel)
    return GivenPart(images, classes, names_of_groups, says, (note,) if random else (), declared)


def _is_image(feature: Any) -> bool:
    return type(feature).__name__ == "Image"


def _by_type(features: Mapping[str, Any], kind: type, usual: Sequence[str], role: str) -> str | None:
    """The column of a type; of several the one with a usual name, else the user must say."""
    own = [name for name, feature in features.items() if isinstance(feature, kind)]
    if len(own) == 1:
        return own[0]
    named = [name for name in usual if name in (own or features)]
    remedy = f"say which with columns={{'{role}': ...}}"
    require(bool(named) or not own, f"several columns may be the {role}: {cut(', '.join(own))}; {remedy}")
    return named[0] if named else None


def numbered(
    values: Sequence[Any] | Tensor | None, role: str, n: int, names: Sequence[str] | None = None
) -> tuple[Tensor, tuple[str, ...]]:
    """(int64 (N,), the names of the numbers). Without names, each value is its own; -1, None and "" are unknown."""
    if values is None:
        return torch.full((n,), -1), ()
    plain = values.tolist() if isinstance(values, Tensor | np.ndarray) else list(values)
    wrong = next((i for i, value in enumerate(plain) if not (value is None or _is_scalar(value))), None)
    remedy = "give one per image (of one-hot rows argmax)"
    require(wrong is None, f"{role} {wrong} is not a single value; {remedy}")
    words = [_word(value) for value in plain]
    if names is None or not all(word.lstrip("-").isdecimal() for word in words):
        names = name_order({*words} - {"", "-1"})
        number = {word: k for k, word in enumerate(names)}
    else:
        number = {str(k): k for k in range(len(names))}
        beyond = next((i for i, word in enumerate(words) if word not in number and word not in ("", "-1")), None)
        if beyond is not None:
            raise HoldfastError(f"{role} {words[beyond]} at position {beyond} has no name: there are {len(names)}")
    return torch.tensor([number.get(word, -1) for word in words], dtype=torch.int64), tuple(names)


def _word(value: Any) -> str:
    if value is None or value != value:
        return ""
    value = value.item() if isinstance(value, Tensor | np.generic) else value
    return str(int(value)) if isinstance(value, float | bool) and float(value).is_integer() else str(value).strip()
