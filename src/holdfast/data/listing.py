"""What a reader is given and what it returns for image files. Open this file to write a reader; see ``readers/``.

Nothing here imports torch as it is loaded, so that the names of readers are known at once.
"""

from __future__ import annotations

import os
from array import array
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn, overload

from holdfast.data.tables import name_order
from holdfast.errors import HoldfastError, require
from holdfast.files import at_home
from holdfast.printable import printable
from holdfast.settings.training import CONFLICT
from holdfast.types import Note

if TYPE_CHECKING:
    from torch import Tensor

EXTENSIONS = frozenset({".png", ".jpg", ".jpeg", ".bmp", ".gif", ".webp", ".tif", ".tiff", ".ppm", ".pgm"})
SPLIT_FOLDERS = {
    "train": "train",
    "training": "train",
    "val": "val",
    "valid": "val",
    "validation": "val",
    "test": "test",
    "testing": "test",
}
"""Folder name, in any case -> split. Left unread, "Train" and "Test" would pass for two classes."""
Row = tuple[str, str, str]
"""Path, class and group of an image; "" is a class or group that is not known."""


@dataclass(frozen=True)
class ReaderOptions:
    """What every reader is given.

    root: where sets with a name are, and what a table's paths are relative to.
    image_size: side in pixels that images are resized to; None keeps their own.
    conflict: share of bias-conflicting training samples, for sets that are made here.
    seed: of everything drawn while a set is made.
    names, label, group: how labels and groups are taken from file names or attributes.
    """

    root: Path | None = None
    image_size: int | None = None
    conflict: float = CONFLICT
    seed: int = 0
    names: str | None = None
    label: str | None = None
    group: str | None = None

    def __post_init__(self) -> None:
        size = self.image_size
        whole = size is None or isinstance(size, int)
        require(whole and (size is None or 1 <= size <= 4096), f"image_size must be in 1..4096, got {size!r}")
        number = isinstance(self.conflict, (int, float))
        require(number and 0 <= self.conflict <= 1, f"conflict must be in [0, 1], got {self.conflict!r}")
        whole = isinstance(self.seed, int)
        require(whole and 0 <= self.seed < 2**63, f"data_seed must be in 0..2**63-1, got {self.seed!r}")

    @property
    def rules(self) -> set[str]:
        """Which of names, label and group were given."""
        return {name for name in ("names", "label", "group") if getattr(self, name)}

    def folder(self) -> Path:
        """Where sets with a name are looked for: root, else $HOLDFAST_ROOT, else ./data."""
        return self.root or at_home(os.environ.get("HOLDFAST_ROOT") or "data")

    def published(self, source: str | Path, inner: Sequence[str], recognises: Callable[[Path], bool]) -> Path:
        """The folder of a published set: a path, or one of ``inner`` below the root folder ("": the root)."""
        if isinstance(source, Path):
            return source
        root = self.folder()
        for folder in (root / usual for usual in inner):
            if recognises(folder):
                return folder
        raise HoldfastError(
            f"no {source} in {printable(root)}, nor in {printable(root / inner[0])}; put the set there in its "
            "published layout, or name another folder with root or $HOLDFAST_ROOT"
        )


class Paths(Sequence[Path]):
    """A fixed list of paths, kept as one block of bytes.

    A million Path objects take most of a gigabyte, and worker processes copy them page by page as they touch them; the
    block takes the length of the names and is shared.

    >>> Paths(["a/1.png", "a/2.png"])[1].as_posix()
    'a/2.png'
    """

    def __init__(self, paths: Iterable[str | os.PathLike[str]]) -> None:
        encoded = [os.fsencode(path) for path in paths]
        self._block = b"".join(encoded)
        self._ends = array("q", accumulate(map(len, encoded), initial=0))

    def __len__(self) -> int:
        return len(self._ends) - 1

    @overload
    def __getitem__(self, index: int) -> Path: ...
    @overload
    def __getitem__(self, index: slice) -> Paths: ...
    def __getitem__(self, index: int | slice) -> Path | Paths:
        if isinstance(index, slice):
            return Paths(self[i] for i in range(*index.indices(len(self))))
        at = range(len(self))[index]
        return Path(os.fsdecode(self._block[self._ends[at] : self._ends[at + 1]]))


@dataclass(frozen=True, eq=False)
class Files:
    """One split's files. labels, groups: (N,) int64, group -1 where unknown. rows: (N,) of a table, from 0 on."""

    paths: Paths
    labels: Tensor
    groups: Tensor
    rows: Tensor | None = None


@dataclass(frozen=True, eq=False)
class Listing:
    """Labelled image files as a reader found them, before anything is refused or decided.

    splits: files by split name (train, val, test); ``train`` is always there.
    problems: why the set cannot be used; ``load`` refuses them, ``holdfast data check`` lists them.
    untrainable: why it cannot be trained on, though a model may be measured on it.
    """

    name: str
    classes: tuple[str, ...]
    splits: Mapping[str, Files]
    group_names: tuple[str, ...] = ()
    notes: tuple[Note, ...] = ()
    problems: tuple[str, ...] = ()
    untrainable: tuple[str, ...] = ()

    def all_problems(self, *, training: bool = True) -> list[str]:
        labels = {split: files.labels for split, files in self.splits.items()}
        hint = "images are files that end in " + ", ".join(sorted(EXTENSIONS))
        found = find_problems(self.classes, labels, hint=hint, training=training)
        return [*self.problems, *(self.untrainable if training else ()), *found]


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


def list_files(
    name: str,
    rows: Mapping[str, Sequence[Row]],
    *,
    classes: Sequence[str] | None = None,
    groups: Sequence[str] | None = None,
    notes: Sequence[Note] = (),
    problems: Sequence[str] = (),
    untrainable: Sequence[str] = (),
    table_rows: Mapping[str, Sequence[int]] | None = None,
) -> Listing:
    """A listing from the path, class and group of every image, by split.

    classes, groups: their names in the order of their numbers; by default sorted, numbers by value, and classes without
    a training image last. table_rows: where each image is in a table, from 0 on.
    """
    import torch

    def whole(values: Iterable[int]) -> Tensor:
        return torch.tensor(list(values), dtype=torch.int64)

    rows = {"train": [], **rows}
    if classes is None:
        trained = name_order({label for _, label, _ in rows["train"]} - {""})
        classes = trained + name_order({label for own in rows.values() for _, label, _ in own} - {*trained, ""})
    if groups is None:
        groups = name_order({group for own in rows.values() for _, _, group in own} - {""})
    label_of = {own: k for k, own in enumerate(classes)} | {"": -1}
    group_of = {own: k for k, own in enumerate(groups)} | {"": -1}
    return Listing(
        name=printable(name),
        classes=tuple(map(printable, classes)),
        splits={
            split: Files(
                Paths(path for path, _, _ in own),
                whole(label_of[label] for _, label, _ in own),
                whole(group_of[group] for _, _, group in own),
                None if table_rows is None else whole(table_rows[split]),
            )
            for split, own in rows.items()
        },
        group_names=tuple(map(printable, groups)),
        notes=tuple(notes),
        problems=tuple(problems),
        untrainable=tuple(untrainable),
    )


def text_lines(path: Path, remedy: str) -> list[str]:
    """The lines of a text file that are not empty. remedy: what to do where it cannot be read."""
    try:
        return [line for line in path.read_text(encoding="utf-8").splitlines() if line.strip()]
    except (OSError, UnicodeDecodeError) as error:
        raise HoldfastError(f"cannot read {printable(path)} ({error}); {remedy}") from error


def images_under(folder: Path) -> list[str]:
    """Paths of all visible image files below a folder, sorted; links are followed, each folder once."""
    found: list[str] = []
    seen: set[str] = set()
    for where, folders, files in os.walk(folder, followlinks=True, onerror=_refuse_folder):
        seen.add(os.path.realpath(where))
        folders[:] = sorted(
            name
            for name in folders
            if not name.startswith(".") and os.path.realpath(os.path.join(where, name)) not in seen
        )
        found += (os.path.join(where, name) for name in sorted(files) if _is_image(name))
    return found


def images_in(folder: Path) -> list[str]:
    """Paths of the visible image files directly in a folder, sorted."""
    try:
        return sorted(entry.path for entry in os.scandir(folder) if entry.is_file() and _is_image(entry.name))
    except OSError as error:
        _refuse_folder(error)


def subfolders(folder: Path) -> list[Path]:
    """The visible folders directly in a folder, sorted by name."""
    try:
        inner = [Path(entry.path) for entry in os.scandir(folder) if entry.is_dir()]
    except OSError as error:
        _refuse_folder(error)
    return sorted((sub for sub in inner if not sub.name.startswith(".")), key=lambda sub: sub.name)


def _refuse_folder(error: OSError) -> NoReturn:
    raise HoldfastError(
        f"cannot read folder {printable(str(error.filename))}: {error.strerror}; make it readable or remove it"
    ) from error


def _is_image(name: str) -> bool:
    return not name.startswith(".") and os.path.splitext(name)[1].lower() in EXTENSIONS
