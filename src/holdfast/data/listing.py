"""What a reader is given and what it returns for image files. Open this file to write a reader; see ``readers/``.

Nothing here imports torch as it is loaded, so that the names of readers are known at once.
"""

from __future__ import annotations

import os
from array import array
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn, TypeAlias, overload

from holdfast.data.tables import name_order
from holdfast.errors import HoldfastError, require
from holdfast.files import IMAGE_SUFFIXES, at_home
from holdfast.parts import named_data
from holdfast.printable import printable
from holdfast.settings.fields import parse_columns
from holdfast.settings.training import CONFLICT
from holdfast.types import Note

if TYPE_CHECKING:
    from torch import Tensor

    from holdfast.data.splits import Dataset

_FOLDERS = {"train": ("train", "training"), "val": ("val", "valid", "validation"), "test": ("test", "testing")}
SPLIT_FOLDERS = {name: split for split, names in _FOLDERS.items() for name in names}
"""Folder name, in any case -> split. Left unread, "Train" and "Test" would pass for two classes."""
SPLITS = ("train", "val", "test")
Row = tuple[str, str, str]
"""Path, class and group of an image; "" is a class or group that is not known."""


class Rows(Sequence[Row]):
    """Rows that are added one by one and kept in few bytes: a million tuples of strings take half a gigabyte.

    >>> rows = Rows([("a/1.png", "cat", "")])
    >>> rows.add([("a/2.png", "dog", "day")])
    >>> list(rows)
    [('a/1.png', 'cat', ''), ('a/2.png', 'dog', 'day')]
    """

    def __init__(self, rows: Iterable[Row] = ()) -> None:
        self._paths, self._ends, self._words = bytearray(), array("q", [0]), array("q")
        self._known: dict[str, int] = {}
        self.add(rows)

    def add(self, rows: Iterable[Row]) -> None:
        for path, label, group in rows:
            self._paths += os.fsencode(path)
            self._ends.append(len(self._paths))
            self._words.extend(self._known.setdefault(word, len(self._known)) for word in (label, group))

    def __len__(self) -> int:
        return len(self._ends) - 1

    @overload
    def __getitem__(self, index: int) -> Row: ...
    @overload
    def __getitem__(self, index: slice) -> list[Row]: ...
    def __getitem__(self, index: int | slice) -> Row | list[Row]:
        if isinstance(index, slice):
            return [self[i] for i in range(*index.indices(len(self)))]
        return self._row(range(len(self))[index], [*self._known])

    def __iter__(self) -> Iterator[Row]:
        words = [*self._known]
        return (self._row(i, words) for i in range(len(self)))

    def _row(self, at: int, words: list[str]) -> Row:
        path = os.fsdecode(bytes(self._paths[self._ends[at] : self._ends[at + 1]]))
        return path, words[self._words[2 * at]], words[self._words[2 * at + 1]]


Listing: TypeAlias = "Dataset"
"""A set of image files as a reader lists them: their size is not chosen yet, and nothing is refused."""


@dataclass(frozen=True)
class ReaderOptions:
    """What every reader is given, as :func:`holdfast.data.load` explains it; seed is its data_seed."""

    root: Path | None = None
    image_size: int | None = None
    conflict: float = CONFLICT
    seed: int = 0
    names: str | None = None
    label: str | None = None
    group: str | None = None
    confine: bool = False
    columns: Mapping[str, str] = field(default_factory=dict)

    @classmethod
    def of(
        cls, *, root: str | Path | None = None, columns: str | Mapping[str, str] | None = None, **rest: Any
    ) -> ReaderOptions:
        """From arguments as users give them."""
        return cls(None if root is None else at_home(root), columns=parse_columns(columns), **rest)

    def __post_init__(self) -> None:
        size, seed = self.image_size, self.seed
        sized = size is None or (isinstance(size, int) and 1 <= size <= 4096)
        require(sized, f"image_size must be in 1..4096, got {size!r}")
        require(isinstance(seed, int) and 0 <= seed < 2**63, f"data_seed must be in 0..2**63-1, got {seed!r}")

    @property
    def rules(self) -> set[str]:
        """Which of names, label, group and columns were given."""
        return {name for name in ("names", "label", "group", "columns") if getattr(self, name)}

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
        remedy = "put the set there in its published layout, or name another folder with root or $HOLDFAST_ROOT"
        raise HoldfastError(f"no {source} in {printable(root)}, nor in {printable(root / inner[0])}; {remedy}")


def list_files(
    name: str,
    rows: Mapping[str, Sequence[Row]],
    *,
    classes: Sequence[str] | Mapping[str, str] | None = None,
    groups: Sequence[str] | Mapping[str, str] | None = None,
    attribute: str = "",
    notes: Sequence[Note] = (),
    problems: Sequence[str] = (),
    untrainable: Sequence[str] = (),
    table_rows: Mapping[str, Sequence[int]] | None = None,
) -> Listing:
    """A set from the path, class and group of every image, by split.

    classes, groups: their names in the order of their numbers, or what each is shown as; by default sorted, numbers by
    value, and classes without a training image last. attribute: what the groups are, in a word. problems, untrainable:
    see :class:`Dataset`. table_rows: where each image is in a table, from 0 on.
    """
    import torch

    from holdfast.data.splits import Dataset, FileSplit, Paths

    def whole(values: Iterable[int]) -> Tensor:
        return torch.frombuffer(found, dtype=torch.int64) if (found := array("q", values)) else torch.empty(0).long()

    def shown(names: Iterable[str] | Mapping[str, str]) -> tuple[str, ...]:
        return tuple(map(printable, names.values() if isinstance(names, Mapping) else names))

    rows = {"train": [], **rows}
    if classes is None:
        trained = name_order({label for _, label, _ in rows["train"]} - {""})
        classes = trained + name_order({label for own in rows.values() for _, label, _ in own} - {*trained, ""})
    if groups is None:
        groups = name_order({group for own in rows.values() for _, _, group in own} - {""})
    label_of = {own: k for k, own in enumerate(classes)} | {"": -1}
    group_of = {own: k for k, own in enumerate(groups)} | {"": -1}
    splits = {
        split: FileSplit(
            Paths(path for path, _, _ in own),
            whole(label_of[label] for _, label, _ in own),
            whole(group_of[group] for _, _, group in own),
            rows=None if table_rows is None else whole(table_rows[split]),
        )
        for split, own in rows.items()
    }
    said: dict[str, Any] = {"notes": tuple(notes), "problems": tuple(problems), "untrainable": tuple(untrainable)}
    said["group_attribute"] = printable(attribute)
    return Dataset(printable(name), shown(classes), group_names=shown(groups), **(said | splits))


def refuse_outside(data: Dataset, source: str | Path, options: ReaderOptions) -> Dataset:
    """The data, once none of its files lies outside its folder, where that is asked for; nothing is opened for it.

    Paths leave a folder by ``../``, by being absolute, and by links to elsewhere.
    """
    from holdfast.data.shard_files import Member
    from holdfast.data.splits import FileSplit

    if not options.confine:
        return data
    path, real = at_home(source), cache(os.path.realpath)
    if isinstance(source, str) and source in named_data():
        home = real(options.folder())
    else:
        home = real(path if path.is_dir() else options.root or path.parent)

    def inside(file: Path | Member) -> bool:
        file = Path(file.shard) if isinstance(file, Member) else file
        place = os.path.join(real(file.parent), file.name)
        return (os.path.realpath(place) if os.path.islink(place) else place).startswith(os.path.join(home, ""))

    splits = (split for split in (*data.splits.values(), data.unlabeled) if isinstance(split, FileSplit))
    if outside := [file for split in splits for file in split.paths if not inside(file)]:
        lost = f"{len(outside)} files lie outside {printable(home)}, such as {printable(str(outside[0]))}"
        remedy = "and confine keeps to that folder; copy them there, or leave confine out"
        raise HoldfastError(f"{data.name}: {lost}, {remedy}")
    return data


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
        inner = (name for name in sorted(folders) if not name.startswith("."))
        folders[:] = [name for name in inner if os.path.realpath(os.path.join(where, name)) not in seen]
        found += (os.path.join(where, name) for name in sorted(files) if _is_image(name))
    return found


def images_in(folder: Path) -> list[str]:
    """Paths of the visible image files directly in a folder, sorted."""
    return [entry.path for entry in _entries(folder) if _is_image(entry.name) and entry.is_file()]


def subfolders(folder: Path) -> list[Path]:
    """The visible folders directly in a folder, sorted by name."""
    return [Path(entry.path) for entry in _entries(folder) if entry.is_dir()]


def _entries(folder: Path) -> list[os.DirEntry[str]]:
    try:
        visible = [entry for entry in os.scandir(folder) if not entry.name.startswith(".")]
    except OSError as error:
        _refuse_folder(error)
    return sorted(visible, key=lambda entry: entry.name)


def _refuse_folder(error: OSError) -> NoReturn:
    where = printable(str(error.filename))
    raise HoldfastError(f"cannot read folder {where}: {error.strerror}; make it readable or remove it") from error


def _is_image(name: str) -> bool:
    return not name.startswith(".") and os.path.splitext(name)[1].lower() in IMAGE_SUFFIXES
