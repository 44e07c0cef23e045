"""Files: written whole or not at all, and refused with the reason where they cannot be read; and folders that one
process at a time may use. Open this file to change how a folder is locked."""

from __future__ import annotations

import errno
import os
import platform
import shutil
import stat
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from holdfast.errors import HoldfastError, require

IMAGE_SUFFIXES = frozenset({".png", ".jpg", ".jpeg", ".bmp", ".gif", ".webp", ".tif", ".tiff", ".ppm", ".pgm"})


def at_home(path: str | Path) -> Path:
    """The path with a leading ~ resolved; one of a user who does not exist is left alone."""
    return Path(os.path.expanduser(path))


def writable_folder(out: str | Path) -> Path:
    """The folder, known to take files before any work is done for it; none is left behind that was not there.

    What is missing of its path is tried under a name of its own: other processes may do the same at the same moment.
    """
    require(out != "", "out is empty; name a folder")
    folder = Path(out)
    try:
        there = next(path for path in (folder, *folder.parents) if path.exists() or path.is_symlink())
        require(there != folder or folder.is_dir(), f"{folder} is not a folder; choose another with --out")
        with tempfile.TemporaryDirectory(dir=there, prefix=".holdfast-", ignore_cleanup_errors=True) as trial:
            (Path(trial) / folder.relative_to(there)).mkdir(parents=True, exist_ok=True)
            with tempfile.TemporaryFile(dir=trial):
                pass
    except OSError as error:
        reason = error.strerror or str(error)
        raise HoldfastError(f"cannot write to {folder}: {reason}; choose another folder with --out") from error
    return folder


@contextmanager
def filling(folder: Path) -> Iterator[Path]:
    """Files that are written to the yielded folder go to ``folder`` together at the end; if the block raises, none."""
    temporary = folder.resolve().with_name(f".{folder.resolve().name}.{os.getpid()}.tmp")
    try:
        temporary.mkdir(parents=True)
        yield temporary
        if not folder.exists():
            os.replace(temporary, folder)
            return
        for path in sorted(path for path in temporary.rglob("*") if path.is_file()):
            place = folder / path.relative_to(temporary)
            place.parent.mkdir(exist_ok=True)
            os.replace(path, place)
    except OSError as error:
        reason = error.strerror or str(error)
        raise HoldfastError(f"cannot write {folder}: {reason}; free some room or choose another place") from error
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


def write_atomic(path: Path, content: bytes) -> None:
    """Write beside the target, make it durable, then put it in place. Missing folders are made."""
    with replacing(path, size=len(content)) as temporary:
        temporary.write_bytes(content)


@contextmanager
def replacing(path: Path, *, size: int | None = None) -> Iterator[Path]:
    """The same for content that grows: write the yielded file, which takes the place of ``path`` at the end.

    If the block raises, ``path`` stays as it was. An ``OSError`` counts as one of writing, so let the block do no more.
    size: of the whole content in bytes, where it is known.
    """
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        yield temporary
        with temporary.open("rb+") as file:
            os.fsync(file.fileno())
        os.replace(temporary, path)
    except OSError as error:
        written = temporary.stat().st_size if size is None and temporary.exists() else 0
        with suppress(OSError):  # its room is free again, and counts as such
            temporary.unlink(missing_ok=True)
        reason = why_unwritten(error, path, size, at_least=written)
        raise HoldfastError(f"cannot write {path}: {reason}; free some room or choose another place") from error
    finally:
        with suppress(OSError):  # what went wrong first is the news
            temporary.unlink(missing_ok=True)


def why_unwritten(error: OSError, path: Path, size: int | None, *, at_least: int = 0) -> str:
    """What the system said and, where room was short, how much was needed and how much there is.

    size: of the file in bytes, where it is known; otherwise at_least, what had been written.
    """
    reason = error.strerror or str(error)
    if error.errno not in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG) or not (size or at_least):
        return reason
    needed = f"{size:,} bytes are needed" if size else f"more than {at_least:,} bytes are needed"
    if error.errno != errno.ENOSPC:  # a quota, or a limit on a single file
        return f"{reason} ({needed})"
    folder = next(place for place in path.absolute().parents if place.exists())
    return f"{reason} ({needed}, {shutil.disk_usage(folder).free:,} are free)"


@contextmanager
def reading() -> Iterator[None]:
    """Around looking at files: what the system refuses (a folder that may not be searched, a name longer than it
    allows) is named, with the remedy.
    """
    try:
        yield
    except OSError as error:
        what = f"{error.filename}: {error.strerror}" if error.filename is not None else str(error)
        raise HoldfastError(f"cannot read {what}; correct the path, or its permissions") from error


def exists(path: Path) -> bool:
    """Whether a file or folder is there. What is closed to us, or no system can hold, is refused.

    Readers would take it for missing or damaged; of a pipe or a device they would wait for more without an end.
    """
    with reading():
        try:
            status(path)
        except (FileNotFoundError, NotADirectoryError, ValueError):  # ValueError: no path can hold a null character
            return False
        if not os.access(path, os.R_OK | os.X_OK if path.is_dir() else os.R_OK):
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(path))
    return True


def status(path: str | Path) -> os.stat_result:
    """What the system knows of a file or folder; an OSError for a pipe, socket or device."""
    found = os.stat(path)
    if not (stat.S_ISREG(found.st_mode) or stat.S_ISDIR(found.st_mode)):
        raise OSError(errno.EINVAL, "it is a pipe, socket or device, not a file", str(path))
    return found


LOCK = ".lock"

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
                (folder / LOCK).unlink()  # before the lock is released: no other process can hold it yet
            os.close(descriptor)


def _take(folder: Path) -> int:
    while True:
        descriptor = os.open(folder / LOCK, os.O_RDWR | os.O_CREAT, 0o666)
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
