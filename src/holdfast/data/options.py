"""What a source of data can be told."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from holdfast.errors import require
from holdfast.settings.names import CONFLICT


@dataclass(frozen=True)
class Options:
    """root: where built-in sets lie, and what a table's paths are relative to.
    image_size: side in pixels images are brought to; None keeps their own.
    conflict: share of training samples whose group contradicts their class, for sets that are made here.
    seed: of everything drawn while a set is made.
    """

    root: Path | None = None
    image_size: int | None = None
    conflict: float = CONFLICT
    seed: int = 0

    def __post_init__(self) -> None:
        size = self.image_size
        whole = size is None or isinstance(size, int)
        require(whole and (size is None or 1 <= size <= 4096), f"image_size must be in 1..4096, got {size!r}")
        number = isinstance(self.conflict, (int, float))
        require(number and 0 <= self.conflict <= 1, f"conflict must be in [0, 1], got {self.conflict!r}")
        whole = isinstance(self.seed, int)
        require(whole and 0 <= self.seed < 2**63, f"data_seed must be in 0..2**63-1, got {self.seed!r}")

    def folder(self) -> Path:
        """Where built-in sets are looked for: root, else $HOLDFAST_ROOT, else ./data."""
        return self.root or at_home(os.environ.get("HOLDFAST_ROOT") or "data")


def at_home(path: str | Path) -> Path:
    """The path with a leading ~ resolved; one of a user who does not exist stays as it is."""
    return Path(os.path.expanduser(path))
