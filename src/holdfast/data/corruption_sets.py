"""The published corrupted test sets: CIFAR-10-C and CIFAR-100-C (arrays), ImageNet-C (folders).

CIFAR-10-C/<corruption>.npy (50,000 x 32 x 32 x 3, severity 1 first), CIFAR-10-C/labels.npy
ImageNet-C/[<family>/]<corruption>/<severity>/<class>/<image>.JPEG, 224 pixels, cut already
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np

from holdfast.data.array_files import refusing
from holdfast.data.images import Array, peek, to_images, to_whole
from holdfast.data.listing import images_under, list_files, subfolders
from holdfast.data.splits import ArraySplit, FileSplit, Split
from holdfast.errors import HoldfastError, require, unknown
from holdfast.printable import printable

LABELS = "labels.npy"
SEVERITIES = ("1", "2", "3", "4", "5")


@dataclass(frozen=True, eq=False)
class CorruptedTest:
    """A test set under several corruptions. A split is opened when it is first used.

    where: the file or folder of every corruption, by its published name.
    classes: names of ImageNet-C's folders; empty for CIFAR, whose labels are CIFAR's own.
    """

    name: str
    where: Mapping[str, Path]
    severities: tuple[int, ...]
    classes: tuple[str, ...] = ()
    labels: Array | None = field(default=None, repr=False)

    @property
    def corruptions(self) -> tuple[str, ...]:
        return tuple(self.where)

    def split(self, corruption: str, severity: int) -> Split:
        """The images of one corruption at one severity, never resized."""
        known = corruption.replace("-", "_")
        if known not in self.where:
            raise unknown(f"corruption of {self.name}", corruption, self.where)
        require(severity in self.severities, f"severity must be one of {self.severities}, got {severity}")
        path = self.where[known]
        if self.labels is None:
            return _folder(path / str(severity), self.classes)
        images, total, shown = _load(path), len(self.labels), printable(path)
        counts = f"{len(images)} images and {LABELS} {total} values"
        require(len(images) == total, f"{shown} has {counts}; unpack the archive again")
        part = slice((severity - 1) * total // 5, severity * total // 5)
        labels = to_whole(self.labels[part], f"{printable(path.parent)}: {LABELS}", least=0)
        return ArraySplit(to_images(images[part], shown), labels, origin=f"{shown}:{severity}")


def open_corrupted(folder: str | Path, *, classes: Sequence[str] = ()) -> CorruptedTest:
    """CIFAR-10-C, CIFAR-100-C or ImageNet-C by what is in the folder.

    classes: folder names in the order of the model's outputs, for ImageNet-C; by default sorted, as its 1,000 are.
    """
    folder = Path(folder)
    if (folder / LABELS).is_file():
        labels = _load(folder / LABELS)
        arrays = {path.stem: path for path in sorted(folder.glob("*.npy")) if path.name != LABELS}
        require(bool(arrays), f"{printable(folder)} has {LABELS} but no <corruption>.npy; unpack the archive again")
        five = labels.ndim == 1 and len(labels) > 0 and len(labels) % 5 == 0
        shape = f"{printable(folder / LABELS)} has shape {labels.shape}"
        require(five, f"{shape}; five severities of one test set were expected")
        return CorruptedTest(printable(folder.name), arrays, (1, 2, 3, 4, 5), labels=labels)
    where = _corruption_folders(folder)
    if not where:
        cifar = f"{LABELS} beside <corruption>.npy (CIFAR-10-C)"
        expected = f"expected {cifar}, or <corruption>/1..5/<class>/ with images (ImageNet-C)"
        raise HoldfastError(f"{printable(folder)} is not a corrupted test set: {expected}")
    severities = sorted({int(s) for path in where.values() for s in os.listdir(path) if s in SEVERITIES})
    first = next(iter(where.values())) / str(severities[0])
    names = tuple(classes) or tuple(sub.name for sub in subfolders(first))
    return CorruptedTest(printable(folder.name), where, tuple(severities), names)


def _folder(folder: Path, classes: Sequence[str]) -> FileSplit:
    require(folder.is_dir(), f"{printable(folder)} is not there; unpack that severity too")
    for sub in subfolders(folder):
        require(sub.name in classes, f"class folder {printable(sub)} is not among the {len(classes)} classes known")
    rows = [(path, sub.name, "") for sub in subfolders(folder) for path in images_under(sub)]
    require(bool(rows), f"{printable(folder)} holds no images; unpack the archive again")
    test = list_files(folder.name, {"test": rows}, classes=classes).test
    assert isinstance(test, FileSplit)
    return replace(test, size=peek(test.paths[0])[0])


def _corruption_folders(folder: Path) -> dict[str, Path]:
    """Folders that hold severities, in the folder or one below (ImageNet-C's families)."""
    if not folder.is_dir():
        return {}
    inner = subfolders(folder)
    deeper = [own for sub in inner for own in subfolders(sub)]
    return {path.name: path for path in sorted(inner + deeper) if (path / "1").is_dir() or (path / "5").is_dir()}


def _load(path: Path) -> Array:
    with refusing(printable(path)):
        array: Array = np.load(path, mmap_mode="r", allow_pickle=False)
        return array
