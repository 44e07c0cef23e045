"""Read every image of a set once: what is there, what cannot be used, and which images are duplicates.

``holdfast data check`` and :func:`holdfast.check_data` begin here; what needs a training is in :mod:`holdfast.quality`.
"""

from __future__ import annotations

import math
import os
from bisect import bisect_right
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import accumulate, chain
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from holdfast.data.duplicates import HASH, SIDE, find_duplicates, pixel_hash, small_copies, small_copy
from holdfast.data.images import Array, Unreadable, decode, peek, reason
from holdfast.data.item_split import ItemSplit, head_of, to_pixels
from holdfast.data.listing import ReaderOptions, images_in
from holdfast.data.load_data import find_reader
from holdfast.data.shard_files import Member
from holdfast.data.splits import Dataset, FileSplit, Split
from holdfast.data.usable_data import LARGEST, find_problems, for_each_file, without
from holdfast.errors import HoldfastError, require
from holdfast.files import at_home
from holdfast.parts import named_data
from holdfast.printable import printable
from holdfast.types import Note

SHOWN_SIZES = 20
SHOWN_GROUPS = 10
"""Groups of duplicates in the text; all are in the files."""
READ_AT_ONCE = 1024
MOST_COLUMNS = 12
"""Groups that a class × group table on a terminal has room for."""

Counts = Mapping[str, int]
Sizes = Mapping[tuple[int, int], int]


@dataclass(frozen=True)
class DataSample:
    """One image of a set. position: in its split, among the readable images. group: "" where it is not known."""

    split: str
    position: int
    source: str
    label: str
    group: str = ""


@dataclass(frozen=True)
class DuplicateSamples:
    """Images that show the same. exact: pixel by pixel. distance: the largest of their links."""

    samples: tuple[DataSample, ...]
    exact: bool
    distance: float

    @property
    def leaks(self) -> bool:
        """Whether they lie in different splits."""
        return len({sample.split for sample in self.samples}) > 1

    @property
    def labels_differ(self) -> bool:
        return len({sample.label for sample in self.samples}) > 1


@dataclass(frozen=True, repr=False)
class DataScan:
    """What a set holds.

    splits, groups: samples of each class and of each group, by split. cells: samples of each (class, group), by split;
    empty where there are no groups.
    sizes: images of each (height, width). modes: images of each Pillow mode, such as L, RGB, RGBA, I;16.
    problems: why the set cannot be loaded. notes: what the reader left out or decided.
    duplicates: groups of images that show the same, the largest first.
    data: the set as its reader gives it, without the unreadable files; None where it could not be read at all.
    """

    name: str
    splits: Mapping[str, Counts]
    groups: Mapping[str, Counts]
    sizes: Sizes
    modes: Counts
    unreadable: tuple[Unreadable, ...] = ()
    problems: tuple[str, ...] = ()
    notes: tuple[Note, ...] = ()
    cells: Mapping[str, Mapping[tuple[str, str], int]] = field(default_factory=dict)
    duplicates: tuple[DuplicateSamples, ...] = ()
    data: Dataset | None = field(default=None, compare=False, repr=False)

    def __repr__(self) -> str:
        """A line; :meth:`to_text` says all."""
        counts = {f"{name} images": sum(own.values()) for name, own in self.splits.items()}
        counts |= {"problems": len(self.problems), "unreadable": len(self.unreadable)}
        counts |= {"groups of duplicates": len(self.duplicates), "leaks between splits": len(self.leaks)}
        found = ", ".join(f"{count:,} {what}" for what, count in counts.items() if count)
        return f"<{type(self).__name__} of {self.name}: {found or 'no images'}>"

    @property
    def sound(self) -> bool:
        """Whether every image can be read and the set can be loaded."""
        return not self.unreadable and not self.problems

    @property
    def leaks(self) -> tuple[DuplicateSamples, ...]:
        """The duplicates that lie in different splits: what is measured on the held-out one is too good."""
        return tuple(group for group in self.duplicates if group.leaks)

    @property
    def leaked(self) -> dict[str, int]:
        """How many images of each held-out split have a duplicate in a split that comes before it."""
        order = {name: k for k, name in enumerate(self.splits)}
        counts: Counter[str] = Counter()
        for group in self.leaks:
            first = min(order[sample.split] for sample in group.samples)
            counts.update(sample.split for sample in group.samples if order[sample.split] > first)
        return dict(counts)

    def to_text(self) -> str:
        """The report as plain lines, with nothing in them that a terminal would obey."""
        lines = self._lines()
        if self.sound:
            counts = ", ".join(self._counts())
            lines += ["", f"every image was read; {f'found: {counts}' if counts else 'no problem was found'}"]
        return "\n".join(lines)

    def _counts(self) -> list[str]:
        """How many there are of each finding, where there is any, for the line that sums up."""
        counts = []
        if self.duplicates:
            differ = sum(group.labels_differ for group in self.duplicates)
            labels = f" ({differ} with different labels)" if differ else ""
            counts.append(f"{_plural(len(self.duplicates), 'group')} of duplicates{labels}")
        if leaked := sum(self.leaked.values()):
            counts.append(f"{_plural(leaked, 'held-out image')} with a duplicate in an earlier split")
        return counts

    def _lines(self) -> list[str]:
        """What was found, above the line that sums it up."""
        lines = [self.name]
        lines += _table("class", self.splits)
        if any(self.groups.values()):
            lines += _table("group", self.groups)
        for split, cells in self.cells.items():
            lines += _crossed(split, cells)
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
        return lines + self._duplicate_lines()

    def _duplicate_lines(self) -> list[str]:
        if not self.duplicates:
            return []
        lines = ["", f"duplicates: {count_duplicates(self.duplicates)}"]
        if differ := sum(group.labels_differ for group in self.duplicates):
            have = "group has" if differ == 1 else "groups have"
            lines.append(f"  {differ} {have} different labels: at least one of them is wrong")
        for split, count in self.leaked.items():
            before = " or ".join(list(self.splits)[: list(self.splits).index(split)])
            lines.append(
                f"  leakage: {count} {split} {'image has' if count == 1 else 'images have'} a duplicate in {before}; "
                "accuracy on them is too high"
            )
        ranked = sorted(self.duplicates, key=lambda group: not group.leaks)
        for group in ranked[:SHOWN_GROUPS]:
            named = [f"{s.source} ({s.split}, {s.label or 'no label'})" for s in group.samples[:4]]
            more = [f"{len(group.samples) - 4} more"] if len(group.samples) > 4 else []
            lines.append(f"  {'same' if group.exact else 'near'}: " + ", ".join(named + more))
        if len(ranked) > SHOWN_GROUPS:
            lines.append(f"  and {len(ranked) - SHOWN_GROUPS} more groups; --out lists all")
        return lines


def _plural(count: int, what: str) -> str:
    return f"{count:,} {what}{'s' * (count != 1)}"


def count_duplicates(groups: Sequence[DuplicateSamples]) -> str:
    """In words: how many groups of either kind, and images in them.

    >>> two = (DataSample("train", 0, "a", "x"), DataSample("train", 1, "b", "x"))
    >>> count_duplicates([DuplicateSamples(two, True, 0.0)])
    '1 group of identical images (2 images)'
    """
    said = []
    for exact, word in ((True, "identical images"), (False, "near duplicates")):
        own = [group for group in groups if group.exact == exact]
        if own:
            images = sum(len(group.samples) for group in own)
            said.append(f"{len(own)} group{'s' * (len(own) > 1)} of {word} ({images} images)")
    return ", ".join(said)


def scan_data(
    source: Any, *, near: float, shown: Callable[[int, int], None] = lambda done, total: None, **reading: Any
) -> DataScan:
    """Decode every image of a set and report on it.

    source, reading: what :func:`holdfast.data.load` takes, and root, names, label, group, columns and confine of it; or
    a loaded set. near: as in :func:`~holdfast.data.duplicates.find_duplicates`. shown: called with the number of images
    read and of all, after each.

    Raises for a name or path that does not exist; whatever else is wrong is in the report.
    """
    source = Path(source) if isinstance(source, os.PathLike) else source
    options = ReaderOptions.of(**reading)
    loose: list[str] = []
    seen = _Seen()
    if isinstance(source, Dataset):
        require(not options.rules, f"{', '.join(sorted(options.rules))} cannot be used for data that is loaded already")
        found = source
    else:
        read = find_reader(source, options)
        try:
            if isinstance(source, str | Path) and source not in named_data() and os.path.isdir(at_home(source)):
                # they belong to no class, but are read where no class is needed
                loose = images_in(at_home(source))
            found = read(options)
        except HoldfastError as error:
            if not isinstance(source, str | Path):
                raise
            lost = [own for own in seen.read_files(map(Path, loose)) if isinstance(own, Unreadable)]
            return DataScan(printable(source), {}, {}, seen.sizes, seen.modes, tuple(lost), problems=(str(error),))
    kept: dict[str, Any] = {}
    unreadable: list[Unreadable] = []
    colour = any(isinstance(split, FileSplit | ItemSplit) for split in found.splits.values())
    done, good, total = 0, 0, sum(map(len, found.splits.values()))
    channels = 3 if colour or not total else max(split.shape[0] for split in found.splits.values() if len(split))
    # of every image a hash and, for near duplicates, a small copy: rows of two arrays, and no object each
    hashes = np.empty((total, HASH), np.uint8)
    small = np.empty((total if near > 0 else 0, channels, SIDE, SIDE), np.uint8)
    for name, split in found.splits.items():
        bad: dict[int, Unreadable] = {}
        for position, one in enumerate(seen.read(split, colour=colour)):
            if isinstance(one, Unreadable):
                bad[position] = one
            else:
                hashes[good] = np.frombuffer(one[0], np.uint8)
                if near > 0:
                    small[good] = one[1]
                good += 1
            done += 1
            shown(done, total)
        kept[name], lost = without(split, bad, name)
        unreadable += lost
    listed = (split.paths for split in found.splits.values() if isinstance(split, FileSplit))
    known = set(map(str, chain(*listed))) if loose else set()
    rest = seen.read_files(Path(path) for path in loose if path not in known)
    unreadable += [own for own in rest if isinstance(own, Unreadable)]
    data = replace(found, **kept)
    return DataScan(
        found.name,
        {name: _count(found.classes, own.labels) for name, own in found.splits.items()},
        {name: _count(found.group_names, own.groups, unknown=True) for name, own in found.splits.items()},
        seen.sizes,
        seen.modes,
        tuple(unreadable),
        tuple(find_problems(found)),
        found.notes,
        {name: _cells(found, own) for name, own in found.splits.items() if len(own)} if found.group_names else {},
        _duplicates(data, hashes[:good], small[:good], near),
        data,
    )


class _Seen:
    """Sizes and modes of what was read so far."""

    def __init__(self) -> None:
        self.sizes: Counter[tuple[int, int]] = Counter()
        self.modes: Counter[str] = Counter()

    def read(self, split: Split, *, colour: bool) -> Iterator[tuple[bytes, Array] | Unreadable]:
        """The hash of the pixels and a small copy of every image, or why it cannot be read. colour: grey arrays are
        read as three channels, as files are, so that they can be compared with those of another split."""
        if isinstance(split, FileSplit):
            yield from self.read_files(split.paths)
        elif isinstance(split, ItemSplit):
            for i in range(len(split)):  # one at a time: the object is the user's, and may not bear threads
                yield self._counted(_read_item(split, i))
        else:
            channels, height, width = split.shape
            self.sizes[height, width] += len(split)
            self.modes["L" if channels == 1 else "RGB"] += len(split)
            for part in torch.split(torch.arange(len(split)), READ_AT_ONCE):
                images = split.read(part)
                images = images.expand(-1, 3, -1, -1) if colour else images
                pixels = images.permute(0, 2, 3, 1).numpy()
                yield from zip(map(pixel_hash, pixels), small_copies(images), strict=True)

    def read_files(self, paths: Iterable[Path] | Iterable[Member]) -> Iterator[tuple[bytes, Array] | Unreadable]:
        return map(self._counted, for_each_file(paths, _read))

    def _counted(self, result: _OneImage | Unreadable) -> tuple[bytes, Array] | Unreadable:
        if isinstance(result, Unreadable):
            return result
        size, mode, pixels, small = result
        self.sizes[size] += 1
        self.modes[mode] += 1
        return pixels, small


_OneImage = tuple[tuple[int, int], str, bytes, Array]
"""(height, width), Pillow's mode, the hash of the pixels, and a small copy."""


def _read(path: Path | Member) -> _OneImage:
    image = decode(path, channels=3, least=LARGEST)
    size, mode = peek(path)
    smaller = image.height * image.width < math.prod(size)  # a huge JPEG, not decoded at its full size
    actual = size if smaller else (image.height, image.width)
    return actual, mode, pixel_hash(np.asarray(image)), small_copy(image)


def _read_item(split: ItemSplit, position: int) -> _OneImage | Unreadable:
    what = split.describe(position)
    try:
        item = split.image(position)
        size, mode = head_of(item, what)
        pixels = to_pixels(item, size=size, channels=3, what=what).permute(1, 2, 0).numpy()
    except HoldfastError as error:
        return Unreadable(what, reason(error.__cause__ if isinstance(error.__cause__, Exception) else error))
    return size, mode, pixel_hash(pixels), small_copy(Image.fromarray(np.ascontiguousarray(pixels)))


def _duplicates(data: Dataset, hashes: Array, small: Array, near: float) -> tuple[DuplicateSamples, ...]:
    names, firsts = [*data.splits], [0, *accumulate(map(len, data.splits.values()))]

    def sample(i: int) -> DataSample:
        part = bisect_right(firsts, i) - 1
        return sample_of(data, names[part], i - firsts[part])

    found = find_duplicates(hashes, small, near=near)
    return tuple(DuplicateSamples(tuple(map(sample, own.members)), own.exact, own.distance) for own in found)


def sample_of(data: Dataset, split: str, position: int) -> DataSample:
    """One image of a set, in words."""
    own = data.splits[split]
    label, group = int(own.labels[position]), int(own.groups[position])
    return DataSample(
        split,
        position,
        own.describe(position),
        data.classes[label] if 0 <= label < len(data.classes) else "",
        data.group_names[group] if 0 <= group < len(data.group_names) else "",
    )


def _count(names: Sequence[str], values: Tensor, *, unknown: bool = False) -> dict[str, int]:
    """How often each name's position occurs in the values (N,); unknown: and what is below 0, where names are known."""
    counts = {name: int((values == k).sum()) for k, name in enumerate(names)}
    lost = int((values < 0).sum()) if unknown and names else 0
    return counts | ({"(unknown)": lost} if lost else {})


def _cells(data: Dataset, split: Split) -> dict[tuple[str, str], int]:
    """Samples of every (class, group), empty ones too: an empty cell is what to look for."""
    groups = [*enumerate(data.group_names), *([(-1, "(unknown)")] if bool((split.groups < 0).any()) else [])]
    return {
        (name, group): int(((split.labels == k) & (split.groups == g)).sum())
        for k, name in enumerate(data.classes)
        for g, group in groups
    }


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


def _crossed(split: str, cells: Mapping[tuple[str, str], int]) -> list[str]:
    """Lines of a table of one split: one row per class, one column per group."""
    by_group: dict[str, dict[str, int]] = {}
    for (name, group), count in cells.items():
        by_group.setdefault(group, {})[name] = count
    if len(by_group) > MOST_COLUMNS:
        return ["", f"class x group ({split}): {len(by_group)} groups are too many to print; --out writes the table"]
    names = list(dict.fromkeys(name for name, _ in cells))
    width = max(len(f"class x group ({split})"), *map(len, names))
    wide = {group: max(10, len(group) + 2) for group in by_group}
    head = f"{f'class x group ({split})':<{width}}" + "".join(f"{group:>{wide[group]}}" for group in by_group)
    body = [f"{n:<{width}}" + "".join(f"{own[n]:>{wide[g]}}" for g, own in by_group.items()) for n in names]
    return ["", head, *body]
