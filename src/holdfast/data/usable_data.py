"""What must hold of a data set before it is used, and what becomes of files that cannot be decoded
(``skip_unreadable``). Open this file to change what is refused, or left out, or how it is said."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import Any, Final, TypeVar

import numpy as np
import torch

from holdfast.data.images import Unreadable, decode, reason
from holdfast.data.shard_files import Member
from holdfast.data.splits import Dataset, FileSplit, Split
from holdfast.data.tables import growing_table
from holdfast.errors import HoldfastError, brief, cut, require
from holdfast.files import IMAGE_SUFFIXES
from holdfast.printable import printable
from holdfast.types import Note


def admitted(data: Dataset, *, training: bool) -> Dataset:
    """A set made in memory, checked as a loaded one is. training: see :func:`find_problems`."""
    for what, names in (("classes", data.classes), ("group_names", data.group_names)):
        words = isinstance(names, (tuple, list)) and all(isinstance(name, str) for name in names)
        require(words, f"{data.name}: {what} must be names such as ('cat', 'dog'), got {names!r}")
        check_once(names, f"{data.name}: {what}")
    for name, split in {**data.splits, "unlabeled": data.unlabeled}.items():
        given = f"{data.name}: {name} is a {type(split).__name__}"
        require(split is None or hasattr(split, "read"), f"{given}; give a split: ArraySplit(images, labels)")
    data = consistent(replace(data, classes=tuple(data.classes), group_names=tuple(data.group_names)))
    refuse(find_problems(data, training=training), data.name, listed=False)
    return data


def consistent(data: Dataset) -> Dataset:
    """A set whose splits go together; groups that have no names go by their numbers."""
    parts = data.splits if data.unlabeled is None else {**data.splits, "unlabeled": data.unlabeled}
    for name, split in parts.items():
        shapes = f"of the {name} split are {split.shape}, those of the train split {data.shape}"
        require(split.shape == data.shape, f"{data.name}: images (C, H, W) {shapes}; make them equal")
    highest = max(int(split.groups.max()) if len(split) else -1 for split in parts.values())
    if data.group_names:
        unnamed = f"{data.name}: group {highest} has no name; group_names has {len(data.group_names)}"
        require(highest < len(data.group_names), f"{unnamed}: add to them")
        return data
    samples = sum(map(len, parts.values()))
    number = f"{data.name}: group {highest} is more than {samples} samples can need"
    require(highest < max(samples, 1), f"{number}; number the groups 0, 1, 2, ...")
    return replace(data, group_names=tuple(map(str, range(highest + 1))))


def check_once(names: Sequence[str], what: str) -> None:
    """Refuse a name that several have."""
    twice = [name for name, count in Counter(names).items() if count > 1]
    require(not twice, f"{what} has {brief(twice[0] if twice else '')} more than once; give each a name of its own")


def find_problems(data: Dataset, *, least: int = 2, training: bool = True) -> list[str]:
    """Why a set cannot be used, one sentence each: what its reader found, and everything wrong with its labels.

    least: how many classes there must be. training: whether every class must have training samples; a model that is
    there already can be measured without.
    """
    labels = {name: split.labels for name, split in data.splits.items()}
    found = [*data.problems, *(data.untrainable if training else ())]
    suffixes = ", ".join(sorted(IMAGE_SUFFIXES))
    more = f" (images are files that end in {suffixes})" if isinstance(data.train, FileSplit) else ""
    if training and not len(data.train):
        others = [
            f"all {len(split)} images are of the {name} split" for name, split in data.splits.items() if len(split)
        ]
        remedy = f"; {others[0]}: to train on them, call it train" if others else ""
        return [*found, f"there is no training sample{more}{remedy}"]
    if not any(map(len, labels.values())):
        return [*found, f"there is no sample{more}"]
    count = data.num_classes
    if count < least:
        needed = "a classifier needs at least two classes" if least == 2 else f"at least {least} classes are needed"
        found.append(f"{needed}, found {count}: {cut(', '.join(data.classes))}{more}")
    for split, own in labels.items():
        outside = (own < 0) | (own >= count)
        if outside.any():
            at = int(outside.nonzero()[0])
            where = f"label {int(own[at])} at position {at} of the {split} split is out of range"
            found.append(f"{where}: there are {count} classes, so labels are 0..{count - 1}")
    present = set(np.unique(data.train.labels.numpy()).tolist())
    lacking = [(label, name) for label, name in enumerate(data.classes if training else ()) if label not in present]
    remedy = f"add some, or remove the class from every split{more}"
    return found + [f"class {brief(name)} (label {label}) has no training sample; {remedy}" for label, name in lacking]


def refuse(problems: Sequence[str], name: str, *, listed: bool = True) -> None:
    """Raise the first problem, if there is one, and say how many more there are. listed: by a command."""
    if problems:
        how = "; 'holdfast data check' lists all" if listed else ""
        more = f" (and {len(problems) - 1} more{how})" if len(problems) > 1 else ""
        raise HoldfastError(f"{name}: {problems[0]}{more}")


CHUNK = 128
"""Files handed to the pool at a time: a set of any size takes the same memory, and an interrupt is noticed soon."""
LARGEST = 4096
"""The largest image_size there is: a JPEG is decoded as far as that needs, with every byte of it read."""
UNREADABLE_CSV: Final = "unreadable.csv"
SKIPPED: Final = "unreadable-skipped"
"""Code of the note that says how many were left out."""
R = TypeVar("R")
F = TypeVar("F", bound=Path | Member)
S = TypeVar("S", bound=Split)


def for_each_file(paths: Iterable[F], task: Callable[[F], R]) -> Iterator[R | Unreadable]:
    """What a task makes of every file, in order, or why it could not; several at a time."""

    def attempt(path: F) -> R | Unreadable:
        try:
            return task(path)
        except Exception as error:  # on damaged files Pillow's readers raise nearly anything
            return Unreadable(str(path), reason(error))

    files = iter(paths)
    with ThreadPoolExecutor(max_workers=min(8, os.cpu_count() or 1)) as pool:  # Pillow's decoders run side by side
        while chunk := list(islice(files, CHUNK)):
            yield from pool.map(attempt, chunk)


def separate(split: FileSplit, name: str = "") -> tuple[FileSplit, list[Unreadable]]:
    """(a split of the files that can be decoded, the others). Decodes every file once."""
    results = for_each_file(split.paths, lambda path: decode(path, channels=split.channels, least=LARGEST) and None)
    return without(split, {i: own for i, own in enumerate(results) if isinstance(own, Unreadable)}, name)


def without(split: S, bad: Mapping[int, Unreadable], name: str) -> tuple[S, list[Unreadable]]:
    """The split without the images at these positions, and these, with their place among the others."""
    if not bad:
        return split, []
    kept = torch.ones(len(split), dtype=torch.bool)
    kept[list(bad)] = False
    lost = [replace(own, split=name, position=i - nth) for nth, (i, own) in enumerate(sorted(bad.items()))]
    return split.subset(kept.nonzero().flatten()), lost


def drop_unreadable(data: Dataset) -> Dataset:
    """The set without files that cannot be decoded; they are in its ``unreadable``, and a warning counts them."""
    changed: dict[str, Any] = {}
    lost: list[Unreadable] = []
    total = 0
    for name, split in {**data.splits, "unlabeled": data.unlabeled}.items():
        if isinstance(split, FileSplit):
            total += len(split)
            changed[name], bad = separate(split, name)
            lost += bad
    if not lost:
        return data
    return replace(
        data, **changed, unreadable=tuple(lost), notes=(*data.notes, skipped_note(len(lost), total, lost[0]))
    )


def skipped_note(count: int, total: int, first: Unreadable) -> Note:
    """The warning that says how many files were left out."""
    such = f"such as {printable(first.path)} ({first.reason})"
    text = f"{count} of {total} image files cannot be read and are skipped, {such}"
    return Note(SKIPPED, text, "'holdfast data check' lists all", "warning")


def taken_before(bad: list[Unreadable], position: int | None = None) -> Iterator[Unreadable]:
    """Takes from the front those that were listed before the readable image at this position; without one, all."""
    while bad and (position is None or bad[0].position <= position):
        yield bad.pop(0)


def write_unreadable(folder: Path, bad: Sequence[Unreadable], *, redacted: bool = False) -> None:
    """unreadable.csv in a folder: one row per file that was left out. Nothing where there is none.

    redacted: without the folders of the files.
    """
    if bad:
        with growing_table(folder / UNREADABLE_CSV, ("image", "split", "reason")) as write:
            for own in bad:
                write([printable(Path(own.path).name if redacted else own.path), own.split, own.reason])
