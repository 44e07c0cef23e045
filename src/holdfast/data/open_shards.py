"""A set of tar shards as a data set: finds the index or makes it, and refuses shards that are not those that were
indexed. Open this file to change what is checked before shards are used.
"""

from __future__ import annotations

import posixpath
from collections.abc import Iterable, Mapping
from functools import partial
from pathlib import Path
from typing import IO, Any

import numpy as np
import torch

from holdfast.data.listing import SPLITS
from holdfast.data.shard_files import LocalShards, Members, RemoteShards, ShardSource, ShardTable, open_url
from holdfast.data.shard_index import INDEX, ShardIndex, Shown, index_shards_of, local_shards
from holdfast.data.splits import Dataset, FileSplit
from holdfast.errors import HoldfastError, brief, cut, explaining, first_line, require
from holdfast.files import at_home, exists, reading, write_atomic
from holdfast.printable import printable
from holdfast.types import Note

NOTHING: Shown = lambda done, total: None  # noqa: E731


def open_shards(source: str | Path) -> Dataset:
    """The images of a folder of shards, of a single one, or of a URL of either."""
    url = as_url(source)
    return _remote(url) if url is not None else _local(at_home(_without_file(source)))


def index(source: str | Path, *, overwrite: bool = False, shown: Shown = NOTHING) -> str:
    """Make the index of tar shards, such as WebDataset's tools write, and say in one line what is in them.

    source: a folder of shards, a .tar file, or a URL that can be written to. Shards are read on first use too where
    there is no index; this does it ahead, or again (overwrite) after shards were changed, added or removed. shown:
    called with the number of shards that are read, and of all.

    >>> import tempfile, holdfast
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     said = holdfast.data.shard("digits", folder + "/shards")
    ...     holdfast.data.index(folder + "/shards", overwrite=True).partition(": ")[2]
    '1797 images of 10 classes in 2 shards'
    """
    url = as_url(source)
    if url is None:
        path = at_home(_without_file(source))
        require(exists(path), f"no such file or folder: {printable(path)}; correct the path of the shards")
        place = _index_of(path)
        there = f"{printable(place)} is there already; replace it with --overwrite"
        require(overwrite or not exists(place), there)
        made = _build_local(path, shown)
        write_atomic(place, made.to_bytes())
        return f"{place}: {summary(made)}"
    system, root = open_url(url)
    place_there, shards = _remote_places(url, system, root)
    there = f"{place_there} is there already; replace it with --overwrite"
    require(overwrite or not system.exists(place_there), there)
    made = _build_remote(url, system, shards, shown)
    with explaining(f"cannot write {place_there}", "copy the shards to where it can be written"):
        system.pipe_file(place_there, made.to_bytes())
    return f"{place_there}: {summary(made)}"


def summary(made: ShardIndex) -> str:
    """What is in shards, in a few words."""
    labels = f" of {len(made.classes)} classes" if made.classes else " without labels"
    groups = f" and {len(made.groups)} groups" if made.groups else ""
    left = f"; left out: {', '.join(made.left_out)}" if made.left_out else ""
    return f"{len(made)} images{labels}{groups} in {len(made.shards)} shards{left}"


def as_url(source: str | Path) -> str | None:
    """A URL of another place than this machine's disk."""
    return str(source) if isinstance(source, str) and "://" in source and not source.startswith("file://") else None


def _without_file(source: str | Path) -> str | Path:
    return source.removeprefix("file://") if isinstance(source, str) else source


def _index_of(path: Path) -> Path:
    return path / INDEX if path.is_dir() else path.with_name(f"{path.name}.{INDEX}")


def _local(path: Path) -> Dataset:
    require(exists(path), f"no such file or folder: {printable(path)}; correct the path of the data")
    place, notes = _index_of(path), []
    root = path if path.is_dir() else path.parent
    with reading():
        found = local_shards(path) if path.is_dir() else {path.name: path.stat().st_size}
        if place.is_file():
            made = ShardIndex.from_bytes(place.read_bytes(), str(place))
            _require_same(made, found, str(path), complete=True)
        else:
            made = _build_local(path, NOTHING)
            notes.append(_keep(made, partial(write_atomic, place), str(place)))
    return _dataset(made, LocalShards(str(root)), path.resolve().name, notes)


def _build_local(path: Path, shown: Shown) -> ShardIndex:
    root = path if path.is_dir() else path.parent
    shards = local_shards(path) if path.is_dir() else {path.name: path.stat().st_size}
    require(bool(shards), f"{printable(path)} holds no shards; give a folder with .tar files")
    return index_shards_of(shards, lambda shard: open(root / shard, "rb"), shown)


def _keep(made: ShardIndex, write: Any, place: str) -> Note:
    """Writes an index that was made on first use, where that is possible."""
    try:
        write(made.to_bytes())
    except Exception as error:  # whoever owns the place may refuse in any way
        text = f"the shards were read once to index them, and the index cannot be kept in {printable(place)}"
        return Note("index-not-kept", f"{text}: {first_line(error)}", "copy them to where it can be written")
    return Note("index-made", f"the shards had no index; it was made: {printable(place)}")


def _remote_places(url: str, system: Any, root: str) -> tuple[str, dict[str, int]]:
    """(where the index is, the path of every shard and its bytes)."""
    single = root.endswith(".tar")
    with explaining(f"cannot read {printable(url)}", "correct the URL, or copy the shards to a disk"):
        if single:
            return f"{root}.{INDEX}", {root: int(system.info(root)["size"])}
        inner = [own for pattern in ("*.tar", "*/*.tar") for own in system.glob(f"{root.rstrip('/')}/{pattern}")]
        shards = {str(own): int(size) for own, size in zip(inner, system.sizes(inner), strict=True)}
    require(bool(shards), f"{printable(url)} lists no .tar files; correct the URL, or write an index beside them")
    return f"{root.rstrip('/')}/{INDEX}", shards


def _build_remote(url: str, system: Any, shards: Mapping[str, int], shown: Shown) -> ShardIndex:
    top = posixpath.dirname(next(iter(shards))) if url.endswith(".tar") else system._strip_protocol(url).rstrip("/")
    paths = {own.removeprefix(f"{top}/"): own for own in shards}

    def opened(shard: str) -> IO[bytes]:
        file: IO[bytes] = system.open(paths[shard], "rb")
        return file

    with explaining(f"cannot read {printable(url)}", "try again, or copy the shards to a disk"):
        sizes = {shard: shards[own] for shard, own in paths.items()}
        return index_shards_of(sizes, opened, shown)


def _remote(url: str) -> Dataset:
    system, root = open_url(url)
    single, notes = root.endswith(".tar"), []
    place = f"{root}.{INDEX}" if single else f"{root.rstrip('/')}/{INDEX}"
    base = posixpath.dirname(url) if single else url
    try:
        content: bytes | None = system.cat_file(place)
    except Exception:  # each file system says in its own way that there is none
        content = None
    if content is None:
        place, shards = _remote_places(url, system, root)
        made = _build_remote(url, system, shards, NOTHING)
        notes.append(_keep(made, partial(system.pipe_file, place), place))
    else:
        made = ShardIndex.from_bytes(content, place)
        parent = posixpath.dirname(root) if single else root.rstrip("/")
        _require_same(made, _sizes(system, parent, made.shards, url), url, complete=False)
    text = "a full shuffle over a URL reads far more than it uses"
    notes.append(Note("url-order", text, "train with --shuffle window, or with a cache that holds the whole set"))
    return _dataset(made, RemoteShards(base, made.digest), posixpath.basename(base.rstrip("/")), notes)


def _sizes(system: Any, parent: str, shards: Iterable[str], url: str) -> dict[str, int]:
    names = list(shards)
    try:
        found = system.sizes([f"{parent}/{name}" for name in names])
    except Exception as error:  # whatever the file system of somebody else raises
        remedy = "put it back, or index the shards anew: holdfast data index"
        raise HoldfastError(f"a shard of {printable(url)} is missing: {first_line(error)}; {remedy}") from error
    return {name: int(size) for name, size in zip(names, found, strict=True) if size is not None}


def _require_same(made: ShardIndex, found: Mapping[str, int], where: str, *, complete: bool) -> None:
    """Refuse shards that are not those of the index. complete: whether all that are there were found."""
    anew = f"index the shards anew: holdfast data index {printable(where)} --overwrite"
    missing = [name for name in made.shards if name not in found]
    lost = f"{len(missing)} of {len(made.shards)} shards of {printable(where)} are missing: {cut(', '.join(missing))}"
    require(not missing, f"{lost}; put them back, or {anew}")
    for name, size in made.shards.items():
        changed = f"the shard {brief(name)} of {printable(where)} has changed since it was indexed"
        require(found[name] == size, f"{changed} ({found[name]:,} bytes, {size:,} then); put it back, or {anew}")
    new = [name for name in found if name not in made.shards]
    more = f"{printable(where)} has shards that its index does not know: {cut(', '.join(new))}"
    require(not complete or not new, f"{more}; remove them, or {anew}")


def _dataset(made: ShardIndex, source: ShardSource, name: str, notes: list[Note]) -> Dataset:
    a = made.arrays
    table = ShardTable(
        source,
        tuple(made.shards),
        names=a["names"].tobytes(),
        **{key: a[key] for key in ("shard", "offset", "size", "checksum", "ends")},
    )
    splits: dict[str, Any] = {}
    for number, split in enumerate(SPLITS):
        rows = np.flatnonzero(a["split"] == number)
        if len(rows) or split == "train":
            labels, groups = (torch.from_numpy(a[key][rows].astype(np.int64)) for key in ("label", "group"))
            splits[split] = FileSplit(Members(table, rows), labels, groups)
    if made.left_out:
        notes.append(Note("members-left-out", f"of the shards are left out: {', '.join(made.left_out)}"))
    classes, groups_ = tuple(map(printable, made.classes)), tuple(map(printable, made.groups))
    attribute = printable(cut(made.attribute))
    return Dataset(
        printable(name), classes, group_names=groups_, group_attribute=attribute, notes=tuple(notes), **splits
    )
