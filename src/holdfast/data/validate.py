"""What must hold of any labelled set before something is trained on it, or measured."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from torch import Tensor

from holdfast.data.splits import Dataset, Split
from holdfast.errors import HoldfastError, require


def admitted(data: Dataset, *, training: bool) -> Dataset:
    """A set that was made in memory, as one that was loaded: nothing else has looked at it yet.

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


def find_problems(
    classes: Sequence[str], labels: Mapping[str, Tensor], *, hint: str = "", least: int = 2, training: bool = True
) -> list[str]:
    """Everything wrong with the labels (N,) of each split, one sentence each; ``train`` must be among them.

    hint: what the source can add about finding or adding samples. least: how many classes there must be. training:
    whether every class must have training samples; a model that is there already can be measured without.
    """
    found = []
    more = f" ({hint})" if hint else ""
    if training and not len(labels["train"]):
        return [f"there is no training sample{more}"]
    if not any(map(len, labels.values())):
        return [f"there is no sample{more}"]
    if len(classes) < least:
        found.append(f"a classifier needs at least two classes, found {len(classes)}: {', '.join(classes)}{more}")
    for split, own in labels.items():
        outside = (own < 0) | (own >= len(classes))
        if outside.any():
            at = int(outside.nonzero()[0])
            found.append(
                f"label {int(own[at])} at position {at} of the {split} split is out of range: "
                f"there are {len(classes)} classes, so labels are 0..{len(classes) - 1}"
            )
    present = set(labels["train"].tolist())
    for label, name in enumerate(classes if training else ()):
        if label not in present:
            found.append(
                f"class {name!r} (label {label}) has no training sample; add some, or remove the class "
                f"from every split{more}"
            )
    return found


def refuse(problems: Sequence[str], name: str, *, listed: bool = True) -> None:
    """Raise the first problem, if there is one, and say how many more there are.

    listed: whether a command can list them.
    """
    if problems:
        how = "; 'holdfast data check' lists all" if listed else ""
        more = f" (and {len(problems) - 1} more{how})" if len(problems) > 1 else ""
        raise HoldfastError(f"{name}: {problems[0]}{more}")


def _parts(data: Dataset) -> dict[str, Split]:
    parts = {"train": data.train, "val": data.val, "test": data.test, "unlabeled": data.unlabeled}
    return {name: split for name, split in parts.items() if split is not None}
