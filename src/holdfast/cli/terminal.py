"""What the terminal and the shell ask of every command."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

from holdfast.errors import Interrupted


@contextmanager
def ended_by_term() -> Iterator[None]:
    """While open, SIGTERM ends the work as Ctrl-C does: what was done is kept, workers are let go."""
    if threading.current_thread() is not threading.main_thread():
        yield  # only the main thread may set handlers
        return

    def end(signum: int, _frame: FrameType | None) -> None:
        raise Interrupted(signum)

    before = signal.signal(signal.SIGTERM, end)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)
