"""One process at a time in a run folder. Open this file to change how a folder is locked."""

from __future__ import annotations

import os
import platform
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from holdfast.errors import HoldfastError

NAME = ".lock"

_held: set[int] = set()
"""Descriptors that hold a lock in this process."""


class InUse(HoldfastError):
    """Another process holds the folder."""


@contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Lock a folder for this process; the system releases the lock when the process ends, whatever ended it.

    Where there is no such lock (Windows, some network file systems) nothing is locked.
    """
    descriptor = _take(folder)
    _held.add(descriptor)
    try:
        yield
    finally:
        if descriptor in _held:
            _held.remove(descriptor)
            with suppress(OSError):
                (folder / NAME).unlink()  # before the lock is released: no other process can hold it yet
            os.close(descriptor)


def _take(folder: Path) -> int:
    while True:
        descriptor = os.open(folder / NAME, os.O_RDWR | os.O_CREAT, 0o666)
        try:
            _lock(descriptor)
        except BlockingIOError:
            holder = os.read(descriptor, 200).decode(errors="replace") or "another process"
            os.close(descriptor)
            raise InUse(f"{folder} is in use by {holder}; wait until it has ended, or choose another --out") from None
        if os.fstat(descriptor).st_nlink:
            os.ftruncate(descriptor, 0)
            os.write(descriptor, f"process {os.getpid()} on {platform.node()}".encode())
            return descriptor
        os.close(descriptor)  # its last holder has removed it since it was opened


def _lock(descriptor: int) -> None:
    if sys.platform == "win32":
        return
    import fcntl

    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        raise
    except OSError:  # the file system has no locks
        pass


def _let_go() -> None:
    """A worker that outlives a killed training must not keep its lock."""
    for descriptor in _held:
        os.close(descriptor)
    _held.clear()


if sys.platform != "win32":
    os.register_at_fork(after_in_child=_let_go)
