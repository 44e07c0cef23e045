"""Complete, atomic checkpoints: whatever moment a process dies at, a whole one remains."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch

from holdfast.errors import HoldfastError

PREFIX = "step-"


class Checkpoints:
    """Numbered checkpoints in a folder, of which the newest is kept.

    One is written beside its final name, flushed to disk, and renamed into place: the rename is the moment at
    which it exists. Only then is its predecessor removed.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def save(self, step: int, state: Mapping[str, Any]) -> None:
        final = self.folder / f"{PREFIX}{step:09d}"
        if final.exists():
            return
        draft = self.folder / f".draft-{os.getpid()}"
        try:
            draft.mkdir(parents=True, exist_ok=True)
            with open(draft / "state.pt", "wb") as file:
                torch.save(dict(state), file)
                file.flush()
                os.fsync(file.fileno())
            draft.rename(final)
        except (OSError, RuntimeError) as error:  # torch reports a full disk as RuntimeError
            shutil.rmtree(draft, ignore_errors=True)
            raise HoldfastError(
                f"cannot write a checkpoint to {self.folder}: {error}; {self.remedy_for_no_room}"
            ) from error
        for old in self.folder.iterdir():
            if old != final:
                shutil.rmtree(old, ignore_errors=True)

    @property
    def remedy_for_no_room(self) -> str:
        """What to do about a full disk: without a checkpoint the run is not kept."""
        if self.newest is None:
            return "free some room or choose another --out, then start again"
        return "free some room, then continue with --resume"

    @property
    def newest(self) -> Path | None:
        """The folder of the newest whole checkpoint."""
        return max(self.folder.glob(f"{PREFIX}*"), default=None)

    @contextmanager
    def fitting(self) -> Iterator[None]:
        """Around the use of what was loaded: says what does not fit, and the remedy."""
        try:
            yield
        except (RuntimeError, KeyError, ValueError, TypeError) as error:
            reason = " ".join(str(error).split())
            raise HoldfastError(
                f"checkpoint {self.newest} does not fit this model and method: {reason:.300}; continue with those that "
                "it was written with, or start anew with --overwrite"
            ) from error

    def load(self) -> dict[str, Any] | None:
        """The newest whole checkpoint, or None. Tensors only: nothing else is unpickled."""
        newest = self.newest
        if newest is None:
            return None
        path = newest / "state.pt"
        try:
            state: dict[str, Any] = torch.load(path, map_location="cpu", weights_only=True)
        except Exception as error:
            raise HoldfastError(
                f"cannot read checkpoint {path}: {error}; remove {newest} or start anew with --overwrite"
            ) from error
        return state
