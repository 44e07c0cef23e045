"""``holdfast data check``: read every image of a set, and report what is there and what cannot be used."""

from __future__ import annotations

import math
import os
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import chain, islice
from pathlib import Path

from torch import Tensor

from holdfast.data.images import decode, peek, reason
from holdfast.data.listing import ReaderOptions, images_in, refuse_outside
from holdfast.data.load_data import find_reader
from holdfast.data.splits import FileSplit
from holdfast.data.usable_data import find_problems
from holdfast.errors import HoldfastError
from holdfast.files import at_home
from holdfast.parts import named_data
from holdfast.printable import printable
from holdfast.types import Note

CHUNK = 128
"""Files handed to the pool at a time: a set of any size takes the same memory, and an interrupt is noticed soon."""
SHOWN_SIZES = 20
LARGEST = 4096
"""The largest image_size there is: a JPEG is decoded as far as that needs, with every byte of it read."""

Counts = Mapping[str, int]
Sizes = Mapping[tuple[int, int], int]


@dataclass(frozen=True)
class Unreadable:
    """A file that cannot be decoded, and why. The path is the one on disk: not safe to print."""

    path: str
    reason: str


@dataclass(frozen=True)
class DataReport:
    """What a set holds.

    splits, groups: samples of each class and of each group, by split.
    sizes: images of each (height, width). modes: images of each Pillow mode, such as L, RGB, RGBA, I;16.
    problems: why the set cannot be loaded. notes: what the reader left out or decided.
    """

    name: str
    splits: Mapping[str, Counts]
    groups: Mapping[str, Counts]
    sizes: Sizes
    modes: Counts
    unreadable: tuple[Unreadable, ...] = ()
    problems: tuple[str, ...] = ()
    notes: tuple[Note, ...] = ()

    @property
    def sound(self) -> bool:
        """Whether every image can be read and the set can be loaded."""
        return not self.unreadable and not self.problems

    def to_text(self) -> str:
        """The report as plain lines, with nothing in them that a terminal would obey."""
        lines = [self.name]
        lines += _table("class", self.splits)
        if any(self.groups.values()):
            lines += _table("group", self.groups)
        if self.sizes:
            ranked = sorted(self.sizes.items(), key=lambda item: (-item[1], item[0]))
            shown = [f"{w}x{h}: {n}" for (h, w), n in ranked[:SHOWN_SIZES]]
            more = [f"{len(ranked) - SHOWN_SIZES} more"] if len(ranked) > SHOWN_SIZES else []
            lines += ["", "sizes (width x height): " + ", ".join(shown + more)]
            lines += ["channels: " + ", ".join(f"{mode}: {n}" for mode, n in sorted(self.modes.items()))]
        unread = [f"{printable(bad.path)}: {bad.reason}" for bad in self.unreadable]
        for title, entries in (("notes", self.notes), ("problems", self.problems), ("unreadable", unread)):
            if entries:
                lines += ["", f"{title} ({len(entries)}):", *(f"  {entry}" for entry in entries)]
        if self.sound:
            lines += ["", "every image was read; no problem was found"]
        return "\n".join(lines)


def check_data(
    name_or_path: str | Path,
    *,
    root: str | Path | None = None,
    names: str | None = None,
    label: str | None = None,
    group: str | None = None,
    confine: bool = False,
) -> DataReport:
    """Decode every image of a set and report on it. Arguments as for ``load``.

    Raises for a name or path that does not exist; whatever else is wrong is in the report.
    """
    home = None if root is None else at_home(root)
    options = ReaderOptions(root=home, names=names, label=label, group=group, confine=confine)
    read = find_reader(name_or_path, options)
    loose: list[str] = []
    try:
        if name_or_path not in named_data() and os.path.isdir(at_home(name_or_path)):
            # they belong to no class, but are read where no class is needed
            loose = images_in(at_home(name_or_path))
        found = refuse_outside(read(options), name_or_path, options)
    except HoldfastError as error:
        sizes, modes, unreadable = _read_all(map(Path, loose))
        return DataReport(printable(name_or_path), {}, {}, sizes, modes, unreadable, problems=(str(error),))
    listed = [split.paths for split in found.splits.values() if isinstance(split, FileSplit)]
    if listed:
        known = {str(path) for path in chain(*listed)} if loose else set()
        sizes, modes, unreadable = _read_all(chain(*listed, (Path(path) for path in loose if path not in known)))
    else:
        channels, height, width = found.shape
        total = sum(map(len, found.splits.values()))
        sizes, modes, unreadable = {(height, width): total}, {"L" if channels == 1 else "RGB": total}, ()
    classes = {name: _count(found.classes, own.labels) for name, own in found.splits.items()}
    groups = {name: _count(found.group_names, own.groups, unknown=True) for name, own in found.splits.items()}
    problems = tuple(find_problems(found))
    return DataReport(found.name, classes, groups, sizes, modes, unreadable, problems, found.notes)


def _read_all(paths: Iterator[Path]) -> tuple[Sizes, Counts, tuple[Unreadable, ...]]:
    """(sizes, modes, unreadable) of a report."""
    sizes: Counter[tuple[int, int]] = Counter()
    modes: Counter[str] = Counter()
    unreadable = []
    with ThreadPoolExecutor(max_workers=min(8, os.cpu_count() or 1)) as pool:  # Pillow's decoders run side by side
        while chunk := list(islice(paths, CHUNK)):
            for result in pool.map(_read, chunk):
                if isinstance(result, Unreadable):
                    unreadable.append(result)
                else:
                    sizes[result[0]] += 1
                    modes[result[1]] += 1
    return sizes, modes, tuple(unreadable)


def _read(path: Path) -> tuple[tuple[int, int], str] | Unreadable:
    try:
        image = decode(path, channels=3, least=LARGEST)
        size, mode = peek(path)
        smaller = image.height * image.width < math.prod(size)  # a huge JPEG, not decoded at its full size
        return size if smaller else (image.height, image.width), mode
    except Exception as error:  # whatever it is, it is what the report is for
        return Unreadable(str(path), reason(error))


def _count(names: Sequence[str], values: Tensor, *, unknown: bool = False) -> dict[str, int]:
    """How often each name's position occurs in the values (N,); unknown: and what is below 0, where names are known."""
    counts = {name: int((values == k).sum()) for k, name in enumerate(names)}
    lost = int((values < 0).sum()) if unknown and names else 0
    return counts | ({"(unknown)": lost} if lost else {})


def _table(title: str, counts: Mapping[str, Counts]) -> list[str]:
    """Lines of a table: one row per name, one column per split."""
    names = list(dict.fromkeys(name for own in counts.values() for name in own))
    if not names:
        return []
    width = max(len(title), *map(len, names))
    head = ["", f"{title:<{width}}" + "".join(f"{split:>10}" for split in counts)]
    body = [f"{name:<{width}}" + "".join(f"{own.get(name, 0):>10}" for own in counts.values()) for name in names]
    total = f"{'total':<{width}}" + "".join(f"{sum(own.values()):>10}" for own in counts.values())
    return [*head, *body, total]
