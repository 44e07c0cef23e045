"""Checkpoints of a run: how they are written, kept, checked against their checksums, and read again."""

from __future__ import annotations

import hashlib
import os
import shutil
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

import torch

from holdfast.errors import HoldfastError, require
from holdfast.files import why_unwritten, write_atomic

PREFIX = "step-"
"""What the folder of a checkpoint is called, with its step."""


STATE, CHECKSUM = "state.pt", "state.pt.sha256"
"""A checkpoint's files: the second is what ``sha256sum --check`` takes."""

KEPT = 2
"""Checkpoints that are kept: the newest, and the one before, for the day when the newest cannot be read."""


class Checkpoints:
    """Numbered checkpoints in a folder, of which the newest two are kept.

    One is written beside its final name with its checksum, flushed to disk, and renamed into place: the rename is the
    moment at which it exists. Meanwhile the newest of before is there.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def save(self, step: int, state: Mapping[str, Any]) -> None:
        final = self.folder / f"{PREFIX}{step:09d}"
        if final.exists():
            return
        draft = self.folder / f".draft-{os.getpid()}"
        written = _Written()
        try:
            draft.mkdir(parents=True, exist_ok=True)
            for old in {*self.folder.iterdir()} - {draft, *self._all[: KEPT - 1]}:  # there need be room for two only
                shutil.rmtree(old, ignore_errors=True)
            with open(draft / STATE, "wb") as written.file:
                torch.save(dict(state), written)  # type: ignore[arg-type]
                written.sync()
            write_atomic(draft / CHECKSUM, f"{written.digest.hexdigest()}  {STATE}\n".encode())
            draft.rename(final)
        except (OSError, RuntimeError) as error:  # RuntimeError: what torch makes of some failures
            shutil.rmtree(draft, ignore_errors=True)
            why = why_unwritten(error, final, written.size) if isinstance(error, OSError) else error
            what = f"cannot write a checkpoint, {final / STATE}: {why}"
            raise HoldfastError(f"{what}; {self.remedy_for_no_room}") from error

    @property
    def remedy_for_no_room(self) -> str:
        """What to do about a full disk: without a checkpoint the run is not kept."""
        if self.newest is None:
            return "free some room or choose another --out, then start again"
        return "free some room, then continue with --resume"

    @property
    def newest(self) -> Path | None:
        """The folder of the newest whole checkpoint."""
        return next(iter(self._all), None)

    @property
    def _all(self) -> list[Path]:
        """The newest first."""
        return sorted(self.folder.glob(f"{PREFIX}*"), reverse=True)

    @contextmanager
    def fitting(self) -> Iterator[None]:
        """Around the use of what was loaded: says what does not fit, and the remedy."""
        try:
            yield
        except (RuntimeError, KeyError, ValueError, TypeError) as error:
            reason = " ".join(str(error).split())
            misfit = f"checkpoint {self.newest} does not fit this model and method: {reason:.300}"
            remedy = "continue with those that it was written with, or start anew with --overwrite"
            raise HoldfastError(f"{misfit}; {remedy}") from error

    def load(self, note: Callable[[str], None] | None = None) -> dict[str, Any] | None:
        """The newest checkpoint, or None where there is none. Tensors only: nothing is unpickled.

        note: to continue from the one before it where the newest is damaged; is told of that. The damaged one loses
        its name, so that it can be written again.
        """
        damaged: dict[Path, Exception] = {}
        for folder in self._all if note is not None else self._all[:1]:
            try:
                state = _read_checkpoint(folder)
            except OSError as error:  # it may be whole, and readable tomorrow
                raise HoldfastError(f"cannot read checkpoint {folder}: {error}; make it readable") from error
            except Exception as error:  # damaged files fail in many ways
                damaged[folder] = error
                continue
            for bad, why in damaged.items():
                assert note is not None
                note(f"checkpoint {bad} is damaged ({why}); continuing from the one before it, {folder.name}")
                bad.rename(bad.with_name(f".damaged-{bad.name}"))
            return state
        for bad, why in damaged.items():
            remedy = "put a copy of it back, or start anew with --overwrite"
            raise HoldfastError(f"cannot read checkpoint {bad / STATE}: {why}; {remedy}") from why
        return None


class _Written:
    """A file to write into, which hashes and counts what is written.

    Once the disk is full it only counts on, so that the size that was needed is known.
    """

    def __init__(self) -> None:
        self.file: IO[bytes]
        self.digest, self.size = hashlib.sha256(), 0
        self.failed: OSError | None = None

    def write(self, data: bytes) -> int:
        self.size += len(data)
        if self.failed is None:
            self.digest.update(data)
            try:
                self.file.write(data)
            except OSError as error:
                self.failed = error
        return len(data)

    def flush(self) -> None:
        """Nothing yet: ``sync`` does it, where it may fail."""

    def sync(self) -> None:
        if self.failed is not None:
            raise self.failed
        self.file.flush()
        os.fsync(self.file.fileno())


def _read_checkpoint(folder: Path) -> dict[str, Any]:
    """The state in the folder of a checkpoint. torch does not check what it reads, so its checksum is checked first."""
    with open(folder / STATE, "rb") as file:
        found = hashlib.file_digest(file, "sha256").hexdigest()
    stated = (folder / CHECKSUM).read_text(errors="replace").split() if (folder / CHECKSUM).exists() else [found]
    require(stated[:1] == [found], f"it does not match its checksum in {CHECKSUM}")
    state: dict[str, Any] = torch.load(folder / STATE, map_location="cpu", weights_only=True)
    return state
