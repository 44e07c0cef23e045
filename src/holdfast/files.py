"""A file is there whole, or not at all."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path

from holdfast.errors import HoldfastError


def write_atomic(path: Path, content: bytes) -> None:
    """Write beside the target, make it durable, then put it in place. Missing folders are made."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with temporary.open("wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    except OSError as error:
        reason = error.strerror or str(error)
        raise HoldfastError(f"cannot write {path}: {reason}; free some room or choose another place") from error
    finally:
        with suppress(OSError):  # what went wrong first is the news
            temporary.unlink(missing_ok=True)
