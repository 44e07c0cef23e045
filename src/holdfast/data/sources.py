"""Which reader serves a name or a path. A new set is one function and one row here.

A reader gives a :class:`Dataset` for arrays, a :class:`Listing` for files; ``load`` and ``check`` take both.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Protocol

from holdfast.data import arrays, builtin, embedded, folders, image_tables, tiny_imagenet
from holdfast.data.anomalies import holds_anomalies, read_anomalies
from holdfast.data.biased import KINDS, corrupted_cifar10
from holdfast.data.layouts import bar, celeba, corruption_sets, dfa, filenames, metashift, waterbirds
from holdfast.data.layouts.filenames import Rules
from holdfast.data.listing import Listing
from holdfast.data.options import Options, at_home
from holdfast.data.printable import printable
from holdfast.data.splits import Dataset
from holdfast.errors import HoldfastError, require, unknown
from holdfast.files import exists

Found = Dataset | Listing


class Layout(Protocol):
    """A module that reads one published layout of folders."""

    def recognised(self, folder: Path, /) -> bool: ...
    def scan(self, folder: Path, /) -> Listing: ...


def _corrupted(options: Options, *, kind: str) -> Dataset:
    """Corrupted CIFAR-10, made anew; holdfast.data.biased keeps it in a file."""
    return corrupted_cifar10(builtin.cifar10(options), kind=kind, conflict=options.conflict, seed=options.seed)


def _published(options: Options, *, name: str, inner: tuple[str, ...], reader: Layout, itself: bool = True) -> Listing:
    """A published set below the root folder under one of its usual names, or, where asked, the root folder itself."""
    root = options.folder()
    for folder in (*(root / usual for usual in inner), *([root] if itself else [])):
        if reader.recognised(folder):
            return reader.scan(folder)
    raise HoldfastError(
        f"no {name} in {printable(root)}, nor in {printable(root / inner[0])}; put the set there in its published "
        "layout, or name another folder with root or $HOLDFAST_ROOT"
    )


NAMED: dict[str, Callable[[Options], Found]] = {
    "digits": embedded.digits,
    "coloured-digits": embedded.coloured_digits,
    "cifar10": builtin.cifar10,
    "cifar100": builtin.cifar100,
    "svhn": builtin.svhn,
    "mnist": builtin.mnist,
    "fashion-mnist": builtin.fashion_mnist,
    "tiny-imagenet": tiny_imagenet.tiny_imagenet,
    **{f"corrupted-cifar10-{kind}": partial(_corrupted, kind=kind) for kind in KINDS},
    "bar": bar.bar,
    "bar-1pct": partial(bar.bar, share="1pct"),
    "bar-5pct": partial(bar.bar, share="5pct"),
    **{
        f"cifar10c-{share}": partial(
            _published, name="cifar10c", inner=(f"cifar10c/{share}", share), reader=dfa, itself=False
        )
        for share in ("0.5pct", "1pct", "2pct", "5pct")
    },
    "bffhq": partial(_published, name="bffhq", inner=("bffhq/0.5pct", "0.5pct"), reader=dfa, itself=False),
    "metashift": partial(_published, name="metashift", inner=("metashift", "MetaShift"), reader=metashift),
    "waterbirds": partial(
        _published, name="waterbirds", inner=("waterbirds", "waterbird_complete95_forest2water2"), reader=waterbirds
    ),
    "celeba": partial(_published, name="celeba", inner=("celeba", "CelebA", "celebA"), reader=celeba),
}
"""Sets that have a name."""


def _anomalies(path: Path, options: Options) -> Dataset:
    return read_anomalies(path).to_train_on(printable(path.name), image_size=options.image_size)


def _npz(path: Path, options: Options) -> Dataset:
    return _anomalies(path, options) if holds_anomalies(path) else arrays.read(path, image_size=options.image_size)


SUFFIXES: dict[str, Callable[[Path, Options], Found]] = {
    ".npz": _npz,
    ".csv": lambda path, options: image_tables.scan_table(path, options.root),
    ".parquet": lambda path, options: image_tables.scan_table(path, options.root),
    ".npy": _anomalies,
}
"""Files, by the end of their name."""


LAYOUTS: tuple[tuple[Callable[[Path], bool], Callable[[Path, Options], Listing]], ...] = (
    (lambda folder: (folder / tiny_imagenet.MARK).is_file(), lambda folder, _: tiny_imagenet.scan(folder)),
    (dfa.recognised, lambda folder, _: dfa.scan(folder)),
    (lambda folder: bool(dfa.shares(folder)), lambda folder, _: dfa.scan_set(folder)),
    (metashift.recognised, lambda folder, _: metashift.scan(folder)),
    (waterbirds.recognised, lambda folder, _: waterbirds.scan(folder)),
    (celeba.recognised, lambda folder, _: celeba.scan(folder)),
    (bar.unmistakable, lambda folder, options: bar.scan(folder, seed=options.seed)),
)
"""Folders that cannot be mistaken for another layout, and their readers."""


def find(name_or_path: str | Path, rules: Rules | None = None) -> Callable[[Options], Found]:
    """The reader of a named set, a file or a folder. A name wins over a folder of that name (say ./name).

    rules: how labels and groups are taken from file names, or CelebA's attributes by name.
    """
    if rules is not None and rules.given:
        return _find_ruled(name_or_path, rules)
    if isinstance(name_or_path, str) and name_or_path in NAMED:
        return NAMED[name_or_path]
    path = at_home(name_or_path)
    require(name_or_path != "", f"no data named: give a set ({', '.join(NAMED)}), a file or a folder")
    there = exists(path)
    if there and path.is_dir():
        if (path / corruption_sets.LABELS).is_file():
            raise HoldfastError(
                f"{printable(path)} is a corrupted test set without training images; open it with "
                "holdfast.data.layouts.corruption_sets.open_corrupted"
            )
        for fits, read in LAYOUTS:
            if fits(path):
                return partial(read, path)
        return lambda options: folders.scan(path)
    suffix = path.suffix.lower()
    if there:
        if suffix not in SUFFIXES:
            raise HoldfastError(
                f"cannot tell what {printable(path)} holds; give a folder, or a file that ends in "
                + ", ".join(SUFFIXES)
            )
        return lambda options: SUFFIXES[suffix](path, options)
    if isinstance(name_or_path, Path) or suffix in SUFFIXES or os.sep in name_or_path:
        raise HoldfastError(f"no such file or folder: {printable(path)}; correct the path of the data")
    raise HoldfastError(f"{unknown('data set', name_or_path, NAMED)} (nor is there a file or folder of that name)")


def _find_ruled(name_or_path: str | Path, rules: Rules) -> Callable[[Options], Found]:
    path = at_home(name_or_path)
    if name_or_path == "celeba" or (os.path.isdir(path) and celeba.recognised(path)):
        require(rules.names is None, "CelebA's labels are attributes, not parts of file names; leave names out")
        scan = partial(celeba.scan, label=rules.label, group=rules.group)
        if name_or_path != "celeba":
            return lambda options: scan(path)
        return lambda options: scan(_celeba_folder(options))
    require(
        os.path.isdir(path) and name_or_path not in NAMED,
        f"names, label and group are for folders of images and for celeba, not for {printable(str(name_or_path))}; "
        "leave them out",
    )
    return lambda options: filenames.scan(path, rules)


def _celeba_folder(options: Options) -> Path:
    root = options.folder()
    return next((f for f in (root, root / "celeba", root / "CelebA") if celeba.recognised(f)), root)
