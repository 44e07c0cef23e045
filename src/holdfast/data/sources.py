"""Which reader serves a name or a path. A new set is one function and one row here.

A reader gives a :class:`Dataset` for arrays, a :class:`Listing` for files; ``load`` and ``check`` take both.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

from holdfast.data import arrays, builtin, embedded, folders, tables, tiny_imagenet
from holdfast.data.listing import Listing
from holdfast.data.options import Options, at_home
from holdfast.data.printable import printable
from holdfast.data.splits import Dataset
from holdfast.errors import HoldfastError, require, unknown

Found = Dataset | Listing

NAMED: dict[str, Callable[[Options], Found]] = {
    "digits": embedded.digits,
    "coloured-digits": embedded.coloured_digits,
    "cifar10": builtin.cifar10,
    "cifar100": builtin.cifar100,
    "svhn": builtin.svhn,
    "mnist": builtin.mnist,
    "fashion-mnist": builtin.fashion_mnist,
    "tiny-imagenet": tiny_imagenet.tiny_imagenet,
}
"""Sets that have a name."""

SUFFIXES: dict[str, Callable[[Path, Options], Found]] = {
    ".npz": lambda path, options: arrays.read(path, image_size=options.image_size),
    ".csv": lambda path, options: tables.scan_csv(path, options.root),
    ".parquet": lambda path, options: tables.scan_parquet(path, options.root),
}
"""Files, by the end of their name."""


def find(name_or_path: str | Path) -> Callable[[Options], Found]:
    """The reader of a named set, a file or a folder. A name wins over a folder of that name (say ./name)."""
    if isinstance(name_or_path, str) and name_or_path in NAMED:
        return NAMED[name_or_path]
    path = at_home(name_or_path)
    require(name_or_path != "", f"no data named: give a set ({', '.join(NAMED)}), a file or a folder")
    if os.path.isdir(path):  # unlike Path.is_dir, false for a name longer than the system allows
        if (path / tiny_imagenet.MARK).is_file():
            return lambda options: tiny_imagenet.scan(path)
        return lambda options: folders.scan(path)
    suffix = path.suffix.lower()
    if os.path.isfile(path):
        if suffix not in SUFFIXES:
            raise HoldfastError(
                f"cannot tell what {printable(path)} holds; give a folder, or a file that ends in "
                + ", ".join(SUFFIXES)
            )
        return lambda options: SUFFIXES[suffix](path, options)
    if isinstance(name_or_path, Path) or suffix in SUFFIXES or os.sep in name_or_path:
        raise HoldfastError(f"no such file or folder: {printable(path)}; correct the path of the data")
    raise HoldfastError(f"{unknown('data set', name_or_path, NAMED)} (nor is there a file or folder of that name)")
