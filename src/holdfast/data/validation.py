"""What must hold of a labelled set before a model is trained or measured on it. Open this for its refusals."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from holdfast.data.listing import find_problems, refuse
from holdfast.data.splits import Dataset, Split
from holdfast.errors import require


def admitted(data: Dataset, *, training: bool) -> Dataset:
    """A set made in memory, checked as a loaded one is.

    training: see :func:`find_problems`.
    """
    for what, names in (("classes", data.classes), ("group_names", data.group_names)):
        words = isinstance(names, (tuple, list)) and all(isinstance(name, str) for name in names)
        require(words, f"{data.name}: {what} must be names such as ('cat', 'dog'), got {names!r}")
        check_once(names, f"{data.name}: {what}")
    for name, split in _parts(data).items():
        require(
            hasattr(split, "read"),
            f"{data.name}: {name} is a {type(split).__name__}; give a split: ArraySplit(images, labels)",
        )
    data = consistent(replace(data, classes=tuple(data.classes), group_names=tuple(data.group_names)))
    refuse(label_problems(data, training=training), data.name, listed=False)
    return data


def consistent(data: Dataset) -> Dataset:
    """A set whose splits go together; groups that have no names go by their numbers."""
    parts = _parts(data)
    for name, split in parts.items():
        require(
            split.shape == data.shape,
            f"{data.name}: images (C, H, W) of the {name} split are {split.shape}, those of the train split "
            f"{data.shape}; make them equal",
        )
    highest = max(int(split.groups.max()) if len(split) else -1 for split in parts.values())
    if data.group_names:
        require(
            highest < len(data.group_names),
            f"{data.name}: group {highest} has no name; group_names has {len(data.group_names)}: add to them",
        )
        return data
    samples = sum(map(len, parts.values()))
    require(
        highest < max(samples, 1),
        f"{data.name}: group {highest} is more than {samples} samples can need; number the groups 0, 1, 2, ...",
    )
    return replace(data, group_names=tuple(map(str, range(highest + 1))))


def check_once(names: Sequence[str], what: str) -> None:
    """Refuse a name that several have."""
    twice = [name for name in names if names.count(name) > 1]
    require(not twice, f"{what} has {twice[0] if twice else ''!r} more than once; give each a name of its own")


def label_problems(data: Dataset, *, least: int = 2, training: bool = True) -> list[str]:
    """:func:`find_problems` of a set."""
    labels = {name: split.labels for name, split in _parts(data).items() if name != "unlabeled"}
    return find_problems(data.classes, labels, least=least, training=training)


def _parts(data: Dataset) -> dict[str, Split]:
    parts = {"train": data.train, "val": data.val, "test": data.test, "unlabeled": data.unlabeled}
    return {name: split for name, split in parts.items() if split is not None}
