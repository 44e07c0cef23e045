"""Ctrl-C and termination end a training at a step, not in the middle of one."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType


class Stop:
    """Whether a signal asked for the end."""

    signum: int | None = None


@contextmanager
def deferred_signals() -> Iterator[Stop]:
    """Note the first SIGINT or SIGTERM in the yielded object; a second one acts at once."""
    stop = Stop()
    if threading.current_thread() is not threading.main_thread():
        yield stop  # only the main thread may set handlers
        return
    before = {s: signal.getsignal(s) for s in (signal.SIGINT, signal.SIGTERM)}

    def note(signum: int, _frame: FrameType | None) -> None:
        stop.signum = signum
        for s, handler in before.items():
            signal.signal(s, handler)

    for s in before:
        signal.signal(s, note)
    try:
        yield stop
    finally:
        for s, handler in before.items():
            signal.signal(s, handler)
