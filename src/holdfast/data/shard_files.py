"""Image files inside tar shards: where each one lies, and how its bytes are read. Open this file to change how shards
are read from a disk, or how those behind a URL are fetched and kept for a while.

Nothing is ever unpacked: a name inside a shard is a name, and never becomes a path to write to.
"""

from __future__ import annotations

import hashlib
import os
import zlib
from collections.abc import Iterable, Sequence
from io import FileIO
from pathlib import Path
from typing import Any, Final, Protocol, overload

import numpy as np
import numpy.typing as npt

from holdfast.errors import HoldfastError, first_line, require
from holdfast.files import at_home
from holdfast.printable import printable

Whole = npt.NDArray[np.int64]
OPEN_SHARDS: Final = 64
"""Shards that a process keeps open."""
CHUNK: Final = 2**20
"""Bytes that are fetched at a time from a URL: a block of neighbouring images, see :mod:`holdfast.data.shuffling`."""
CACHE: Final = "HOLDFAST_CACHE"
"""The environment variable with the folder that fetched bytes are kept in."""
CACHE_SIZE: Final = "HOLDFAST_CACHE_GB"
DEFAULT_GB: Final = 20.0
SWEEP: Final = 256
"""Chunks written between two looks at the size of the cache."""


class ShardSource(Protocol):
    """Where shards lie. root: the folder or URL, as messages show it."""

    root: str

    def read(self, shard: str, offset: int, size: int) -> bytes:
        """Bytes of a shard; fewer where it ends before."""

    def prepare(self, ranges: Iterable[tuple[str, int, int]]) -> None:
        """Said ahead of reading (shard, offset, size), so that all can be fetched at once."""

    def place(self, shard: str) -> str:
        """Where a shard is, for messages and tables."""


class LocalShards:
    """Shards in a folder on disk."""

    def __init__(self, root: str) -> None:
        self.root = root
        self._open: dict[str, FileIO] = {}

    def read(self, shard: str, offset: int, size: int) -> bytes:
        file = self._file(shard)  # by a name: without one, another thread that opens the shard too would close it here
        return os.pread(file.fileno(), size, offset)  # of a process that was forked too: no file position

    def _file(self, shard: str) -> FileIO:
        if (file := self._open.get(shard)) is None:
            if len(self._open) >= OPEN_SHARDS:
                self._open.pop(next(iter(self._open)), None)  # closed once no other thread reads it
            file = self._open[shard] = FileIO(self.place(shard))
        return file

    def prepare(self, ranges: Iterable[tuple[str, int, int]]) -> None:
        return None

    def place(self, shard: str) -> str:
        return os.path.join(self.root, shard)

    def __getstate__(self) -> dict[str, Any]:
        return {"root": self.root, "_open": {}}


class RemoteShards:
    """Shards behind a URL, of which chunks are kept in a folder that never grows beyond its limit.

    version: what distinguishes these shards from others that had the same names once. All processes of a machine share
    the folder: a chunk is written under another name and renamed, and one that another process swept away is fetched
    again.
    """

    def __init__(self, root: str, version: str) -> None:
        self.root, self.version = root, version
        self.folder, self.most = cache_folder() / "shards", cache_bytes()
        self._systems: dict[int, tuple[Any, str]] = {}
        self._written = 0

    def read(self, shard: str, offset: int, size: int) -> bytes:
        last = max(offset, offset + size - 1) // CHUNK
        parts = [self._chunk(shard, number) for number in range(offset // CHUNK, last + 1)]
        start = offset % CHUNK
        return b"".join(parts)[start : start + size]

    def prepare(self, ranges: Iterable[tuple[str, int, int]]) -> None:
        wanted = {
            (shard, number)
            for shard, offset, size in ranges
            for number in range(offset // CHUNK, (offset + max(size, 1) - 1) // CHUNK + 1)
        }
        self._fetch(sorted(own for own in wanted if not self._path(*own).exists()))

    def place(self, shard: str) -> str:
        return f"{self.root.rstrip('/')}/{shard}"

    def _chunk(self, shard: str, number: int) -> bytes:
        path = self._path(shard, number)
        try:
            content = path.read_bytes()
            os.utime(path)  # what was used last is swept away last
            return content
        except OSError:
            return self._fetch([(shard, number)])[0]

    def _path(self, shard: str, number: int) -> Path:
        own = hashlib.sha256(f"{self.root}\n{self.version}\n{shard}".encode()).hexdigest()[:32]
        return self.folder / f"{own}-{number}"

    def _fetch(self, chunks: Sequence[tuple[str, int]]) -> list[bytes]:
        """Chunks from the URL, several at a time where its file system can do that; they are kept as well."""
        if not chunks:
            return []
        system, root = self.system()
        paths = [f"{root.rstrip('/')}/{shard}" for shard, _ in chunks]
        starts = [number * CHUNK for _, number in chunks]
        remedy = "try again, or copy the shards to a disk"
        try:
            found = system.cat_ranges(paths, starts, [start + CHUNK for start in starts], on_error="raise")
        except Exception as error:  # whatever the file system of somebody else raises
            raise HoldfastError(f"cannot read {self.place(chunks[0][0])}: {first_line(error)}; {remedy}") from error
        too_long = any(len(own) > CHUNK for own in found)  # a server may ignore which bytes were asked for
        require(not too_long, f"{self.root} does not answer requests for parts of a file; {remedy}")
        for (shard, number), content in zip(chunks, found, strict=True):
            self._keep(self._path(shard, number), content)
        return [bytes(content) for content in found]

    def _keep(self, path: Path, content: bytes) -> None:
        draft = path.with_name(f".{path.name}.{os.getpid()}")
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            draft.write_bytes(content)
            draft.replace(path)
        except OSError:  # a full disk costs time, and nothing else
            draft.unlink(missing_ok=True)
        self._written += 1
        if self._written % SWEEP == 1:
            sweep(self.folder, self.most)

    def system(self) -> tuple[Any, str]:
        """The file system of the URL and the path in it; each process has its own, since few survive a fork."""
        if os.getpid() not in self._systems:
            self._systems[os.getpid()] = open_url(self.root)
        return self._systems[os.getpid()]

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_systems": {}}


def open_url(url: str) -> tuple[Any, str]:
    """(the file system of a URL, the path in it)."""
    try:
        import fsspec
    except ImportError as error:
        raise HoldfastError(
            f"{url} needs fsspec; run: pip install 'holdfast[fsspec]', or copy the data here"
        ) from error
    try:
        system, path = fsspec.core.url_to_fs(url)
    except Exception as error:  # an unknown protocol, a package that is not there, credentials that are wrong
        remedy = "correct the URL, install what it needs, or copy the data to a disk"
        raise HoldfastError(f"cannot open {printable(url)}: {first_line(error)}; {remedy}") from error
    return system, str(path)


def cache_folder() -> Path:
    """$HOLDFAST_CACHE, else ~/.cache/holdfast."""
    return at_home(os.environ.get(CACHE) or os.path.join(os.environ.get("XDG_CACHE_HOME") or "~/.cache", "holdfast"))


def cache_bytes() -> int:
    """The most that fetched chunks may take on disk."""
    said = os.environ.get(CACHE_SIZE) or str(DEFAULT_GB)
    try:
        found = float(said)
        require(0 < found < 1e9, "")
    except (ValueError, HoldfastError):
        raise HoldfastError(f"{CACHE_SIZE} must be a number of gigabytes above 0, got {said!r}; correct it") from None
    return int(found * 1e9)


def sweep(folder: Path, most: int) -> None:
    """Remove the files that were not used for the longest time until the folder is small enough."""
    found = []
    for entry in os.scandir(folder):
        try:
            state = entry.stat()
            found.append((state.st_mtime_ns, state.st_size, entry.path))
        except OSError:  # another process swept it away
            continue
    over = sum(size for _, size, _ in found) - most
    for _, size, path in sorted(found):
        if over <= 0:
            return
        Path(path).unlink(missing_ok=True)
        over -= size


class ShardTable:
    """Every image of a set of shards, as a few arrays: one Python object per image would take a kilobyte.

    shards: their names. shard, offset, size, checksum: (N,) which shard, where in it, bytes, and their CRC-32. names,
    ends: the names of all images in one block of bytes, and where each ends.
    """

    def __init__(
        self,
        source: ShardSource,
        shards: Sequence[str],
        *,
        shard: npt.NDArray[Any],
        offset: Whole,
        size: Whole,
        checksum: npt.NDArray[Any],
        names: bytes,
        ends: Whole,
    ) -> None:
        self.source, self.shards = source, tuple(shards)
        self.shard, self.offset, self.size, self.checksum = shard, offset, size, checksum
        self.names, self.ends = names, ends

    def name(self, row: int) -> str:
        start = int(self.ends[row - 1]) if row else 0
        return os.fsdecode(self.names[start : int(self.ends[row])])

    def range(self, row: int) -> tuple[str, int, int]:
        """(shard, offset, size) of an image."""
        return self.shards[self.shard[row]], int(self.offset[row]), int(self.size[row])

    def read(self, row: int) -> bytes:
        """The bytes of an image; refused where they are not those that were indexed."""
        shard, offset, size = self.range(row)
        try:
            content = self.source.read(shard, offset, size)
        except OSError as error:
            raise self._refused(row, f"cannot be read: {error.strerror or error}") from error
        if len(content) != size:
            raise self._refused(row, "are cut off: the shard is too short")
        if zlib.crc32(content) != self.checksum[row]:
            raise self._refused(row, "have changed since they were indexed")
        return content

    def _refused(self, row: int, why: str) -> HoldfastError:
        what = f"the bytes of {printable(self.name(row))} in {printable(self.source.place(self.range(row)[0]))}"
        remedy = f"put the shard back, or index it anew: holdfast data index {printable(self.source.root)}"
        return HoldfastError(f"{what} {why}; {remedy}")


class Member:
    """An image file in a shard; what ``pathlib.Path`` is for one on disk."""

    __slots__ = ("row", "table")

    def __init__(self, table: ShardTable, row: int) -> None:
        self.table, self.row = table, row

    @property
    def id(self) -> str:
        """Its name in the set, as it was relative to the folder that the shards were made of."""
        return self.table.name(self.row)

    @property
    def size(self) -> int:
        return int(self.table.size[self.row])

    @property
    def shard(self) -> str:
        """Where its shard is."""
        return self.table.source.place(self.table.range(self.row)[0])

    def read_bytes(self) -> bytes:
        return self.table.read(self.row)

    def __str__(self) -> str:
        return f"{self.shard}/{self.id}"


class Members(Sequence[Member]):
    """Some of the images of a table, by their rows."""

    def __init__(self, table: ShardTable, rows: Whole) -> None:
        self.table, self.rows = table, rows

    def __len__(self) -> int:
        return len(self.rows)

    @overload
    def __getitem__(self, index: int) -> Member: ...
    @overload
    def __getitem__(self, index: slice) -> Members: ...
    def __getitem__(self, index: int | slice) -> Member | Members:
        if isinstance(index, slice):
            return Members(self.table, self.rows[index])
        return Member(self.table, int(self.rows[index]))

    def subset(self, index: npt.NDArray[Any]) -> Members:
        return Members(self.table, self.rows[index])

    def prepare(self, index: Sequence[int]) -> None:
        """Said before these are read one by one."""
        self.table.source.prepare(self.table.range(int(self.rows[i])) for i in index)
