"""Arrays from .npz and .npy files that anyone may have written. Open this file when a good one is refused.

zipfile and numpy raise nearly anything on damaged bytes: here all of it is bad input. Nothing is unpickled.
"""

from __future__ import annotations

import math
import os
import sys
import zipfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

from holdfast.errors import HoldfastError, cut, first_line, require
from holdfast.printable import printable

if TYPE_CHECKING:
    import numpy.typing as npt

    Array = npt.NDArray[Any]

ENCRYPTED = 0x1
"""The bit of a zip member's flags that says so."""
ROOM = Path("/sys/fs/cgroup/memory.max"), Path("/sys/fs/cgroup/memory/memory.limit_in_bytes")
"""Where a container's own limit is written."""

Objects = Callable[[IO[bytes]], Any]
"""Reads an array of Python objects from where its pickle starts."""


class ArrayFile:
    """An open .npz file. names: its arrays, without ``.npy``."""

    def __init__(self, path: Path, archive: zipfile.ZipFile) -> None:
        self.path, self._archive, self._taken = path, archive, 0
        infos = archive.infolist()
        self._members = {info.filename.removesuffix(".npy"): info for info in infos}
        self.names = list(self._members)
        require(len(infos) == len(self.names), f"{printable(path)} has two arrays of one name; write the file again")

    def read(self, name: str, *, objects: Objects | None = None) -> Any:
        """One array, in memory. objects: see :func:`read_array`."""
        info = self._members[name]
        what = f"{cut(printable(name))} of {printable(self.path)}"
        require(not info.flag_bits & ENCRYPTED, f"{what} is encrypted; write the file again without a password")
        with refusing(what), self._archive.open(info) as file:
            array = read_array(file, info.file_size, what, taken=self._taken, objects=objects)
        self._taken += getattr(array, "nbytes", 0)
        return array


@contextmanager
def open_npz(path: Path) -> Iterator[ArrayFile]:
    """An .npz file to read arrays from, one by one."""
    shown = printable(path)
    with refusing(shown):
        require(path.is_file(), f"{shown} is not a file; give an .npz file")  # to open a pipe would wait for a writer
        zipped = zipfile.is_zipfile(path)
        require(zipped, f"{shown} is not an .npz file, or is damaged; write it with numpy.savez")
        archive = zipfile.ZipFile(path)
    with archive:
        yield ArrayFile(path, archive)


def read_array(file: IO[bytes], size: int, what: str, *, taken: int = 0, objects: Objects | None = None) -> Any:
    """The array that a file of so many bytes holds, once its header is known to promise no more than that.

    what: its name for messages. taken: bytes that arrays beside it have already. objects: what reads an array of Python
    objects, which is refused without. To be called within :func:`refusing`.
    """
    from numpy.lib import format as npy

    start = file.read(npy.MAGIC_LEN)
    if not start.startswith(npy.MAGIC_PREFIX):
        raise ValueError("it is not an array")
    header = npy.read_array_header_1_0 if start[-2:] == b"\1\0" else npy.read_array_header_2_0
    shape, _, dtype = header(file)
    if dtype.hasobject:
        if objects is not None:
            return objects(file)
        remedy = "save it as numbers, such as .astype('int64'), or as plain text for names"
        raise HoldfastError(f"{what} holds Python objects, which are never unpickled; {remedy}")
    plain = all(type(side) is int and side >= 0 for side in shape)  # numpy takes True for a length
    count: int = math.prod(shape) if plain else -1
    if not plain or (dtype.itemsize == 0 and count):
        raise ValueError(f"shape {shape} of type {dtype} is not that of an array")
    needed, there = count * dtype.itemsize, machine_memory()
    beside = f" beside {gibibytes(taken)} of other arrays" if taken else ""
    most = f"this machine has {gibibytes(there)} of memory; write a smaller file, or images as files in a folder"
    require(needed + taken <= there, f"{what} promises {gibibytes(needed)}{beside}, and {most}")
    if needed > size - file.tell():
        raise ValueError(f"it promises {needed} bytes and has {size - file.tell()}")
    file.seek(0)
    array = npy.read_array(file, allow_pickle=False)
    if file.read(1):  # also lets zipfile compare the checksum, which it does at the end
        raise ValueError(f"it has more bytes than the {needed} of its shape {shape}")
    return array


def text_array(values: Array, what: str) -> tuple[str, ...]:
    """The texts of a one-dimensional array of them; bytes are UTF-8."""
    found = f"{what} has shape {values.shape} and type {values.dtype}"
    require(values.ndim == 1 and values.dtype.kind in "US", f"{found}; give a one-dimensional array of text")
    with refusing(what):  # bytes that are not UTF-8, numbers that are not characters
        texts = [text.decode("utf-8") if isinstance(text, bytes) else text for text in values.tolist()]
        return tuple(map(printable, texts))


@contextmanager
def refusing(what: str) -> Iterator[None]:
    """Around reading bytes from outside: whatever a library raises over them is bad input."""
    try:
        yield
    except HoldfastError:
        raise
    except Exception as error:
        why = printable(first_line(error))[:300]
        remedy = "" if "; " in why else "; write the file again"
        raise HoldfastError(f"cannot read {what}: {why}{remedy}") from error


def machine_memory() -> int:
    """Bytes of memory that this machine or container has; no bound where the system does not say."""
    found = [sys.maxsize]
    with suppress(AttributeError, OSError, ValueError):  # not on every system
        found.append(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"))
    for limit in ROOM:
        with suppress(OSError, ValueError):  # "max" is none
            found.append(int(limit.read_text(encoding="ascii")))
    return min(found)


def gibibytes(count: int) -> str:
    """
    >>> gibibytes(3 * 2**30), gibibytes(2**20)
    ('3 GiB', '0.00098 GiB')
    """
    return f"{count / 2**30:.{0 if count >= 10 * 2**30 else 2}g} GiB"
