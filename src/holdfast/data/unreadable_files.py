"""``skip_unreadable``: leave files that cannot be decoded out of a set, and say which. Open this to change what they
become."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import Any, Final, TypeVar

import torch

from holdfast.data.images import Unreadable, decode, reason
from holdfast.data.shard_files import Member
from holdfast.data.splits import Dataset, FileSplit, Split
from holdfast.data.tables import growing_table
from holdfast.printable import printable
from holdfast.types import Note

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
