"""Many file names in little memory."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import overload

import numpy as np


class Paths(Sequence[Path]):
    """A fixed list of paths, kept as one block of bytes.

    A million Path objects take most of a gigabyte, and worker processes copy them page by page as they
    touch them; the block takes the length of the names and is shared as it is.

    >>> Paths(["a/1.png", "a/2.png"])[1].as_posix()
    'a/2.png'
    """

    def __init__(self, paths: Iterable[str | os.PathLike[str]]) -> None:
        encoded = [os.fsencode(path) for path in paths]
        self._block = b"".join(encoded)
        self._ends = np.cumsum([0, *map(len, encoded)])

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
