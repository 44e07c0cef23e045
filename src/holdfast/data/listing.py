"""Labelled image files as they were found, before anything is refused or decided."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass

from torch import Tensor

from holdfast.data.images import EXTENSIONS, GREY_MODES, peek
from holdfast.data.paths import Paths
from holdfast.data.splits import Dataset, FileSplit
from holdfast.data.validate import find_problems, refuse

SAMPLED = 256
"""Headers read to learn the size and channels of a set."""
SIZES_DIFFER = "images differ in size"
"""How the note begins that says what they are brought to."""
FALLBACK_SIZE = 224
"""Side of the images of a set whose own sizes differ: what most pretrained networks take."""


@dataclass(frozen=True, eq=False)
class Files:
    """One split's files. labels, groups: (N,) int64, group -1 where unknown. rows: (N,) of a table, from 0 on."""

    paths: Paths
    labels: Tensor
    groups: Tensor
    rows: Tensor | None = None


@dataclass(frozen=True, eq=False)
class Listing:
    """What a reader of files found.

    splits: files by split name (train, val, test); ``train`` is always there.
    problems: why the set cannot be used as it is; ``load`` refuses them, ``check`` lists them.
    untrainable: why it cannot be trained on, though a model may be measured on it.
    """

    name: str
    classes: tuple[str, ...]
    splits: Mapping[str, Files]
    group_names: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    problems: tuple[str, ...] = ()
    untrainable: tuple[str, ...] = ()

    def all_problems(self, *, training: bool = True) -> list[str]:
        labels = {split: files.labels for split, files in self.splits.items()}
        hint = "images are files that end in " + ", ".join(sorted(EXTENSIONS))
        found = find_problems(self.classes, labels, hint=hint, training=training)
        return [*self.problems, *(self.untrainable if training else ()), *found]


def open_files(listing: Listing, image_size: int | None, *, training: bool = True) -> Dataset:
    """The data set behind a listing without problems. Reads a few headers, no pixels."""
    refuse(listing.all_problems(training=training), listing.name)
    shown = next(files.paths for files in listing.splits.values() if len(files.paths))
    size, channels, notes = common_shape(shown, image_size)
    made = {
        split: FileSplit(files.paths, files.labels, files.groups, size=size, channels=channels, rows=files.rows)
        for split, files in listing.splits.items()
    }
    return Dataset(
        name=listing.name,
        classes=listing.classes,
        train=made["train"],
        val=made.get("val"),
        test=made.get("test"),
        group_names=listing.group_names,
        notes=(*listing.notes, *notes),
    )


def common_shape(paths: Paths, image_size: int | None) -> tuple[tuple[int, int], int, list[str]]:
    """((H, W), C, notes) to bring all images to, judged by evenly spaced samples."""
    count = min(SAMPLED, len(paths))
    heads = [peek(paths[i * len(paths) // count]) for i in range(count)]
    channels = 1 if all(mode in GREY_MODES for _, mode in heads) else 3
    sizes = Counter(size for size, _ in heads)
    if image_size is not None:
        return (image_size, image_size), channels, []
    if len(sizes) == 1:
        return next(iter(sizes)), channels, []
    (low_h, low_w), (high_h, high_w) = min(sizes), max(sizes)
    note = (
        f"{SIZES_DIFFER} (from {low_w}x{low_h} to {high_w}x{high_h} among {count} looked at); "
        f"all are brought to {FALLBACK_SIZE}x{FALLBACK_SIZE}; image_size chooses another"
    )
    return (FALLBACK_SIZE, FALLBACK_SIZE), channels, [note]
