"""Signals: what Ctrl-C, SIGTERM and a kill do to a command, to a training and to the workers that read images.

Open this file to change how work is ended from outside.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

from holdfast.errors import Interrupted

ENDING = (signal.SIGINT, signal.SIGTERM)
TOGETHER = 1.0
"""Seconds within which a second signal is the same wish: timeout(1) signals the process, then its whole group."""
WATCH = 0.5
"""Seconds after which a worker notices that its parent was killed, at the latest."""

_taken = -TOGETHER  # when the last signal came that was acted on


class Stop:
    """The signal that came, if one did."""

    signum: int | None = None


@contextmanager
def deferred_signals() -> Iterator[Stop]:
    """Keep the first SIGINT or SIGTERM in the yielded object; another one, ``TOGETHER`` later, acts at once."""
    stop = Stop()
    if not _may_set_handlers():
        yield stop
        return
    before = {s: signal.getsignal(s) for s in ENDING}

    def restore() -> None:
        for s, handler in before.items():
            signal.signal(s, handler)

    def note(signum: int, _frame: FrameType | None) -> None:
        if _repeated():
            return
        if stop.signum is not None:  # somebody does not want to wait for the end of the step
            restore()
            signal.raise_signal(signum)
        stop.signum = signum

    for s in before:
        signal.signal(s, note)
    try:
        yield stop
    finally:
        restore()


@contextmanager
def ended_by_term() -> Iterator[None]:
    """While open, SIGTERM ends the work as Ctrl-C does: what was done is kept, workers are released."""
    if not _may_set_handlers():
        yield
        return

    def end(signum: int, frame: FrameType | None) -> None:
        if _finalising(frame):  # Python drops what __del__ raises, so the signal must come again
            threading.Timer(0.05, signal.pthread_kill, (threading.get_ident(), signum)).start()
        elif not _repeated():
            raise Interrupted(signum)

    before = signal.signal(signal.SIGTERM, end)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def _may_set_handlers() -> bool:
    """Only the main thread may; signals before this moment are no longer of interest then."""
    global _taken
    _taken = -TOGETHER
    return threading.current_thread() is threading.main_thread()


def _repeated() -> bool:
    """Whether a signal belongs to one that has been acted on; if not, this one is."""
    global _taken
    if time.monotonic() - _taken < TOGETHER:
        return True
    _taken = time.monotonic()
    return False


def _finalising(frame: FrameType | None) -> bool:
    while frame is not None:
        if frame.f_code.co_name == "__del__":
            return True
        frame = frame.f_back
    return False


@contextmanager
def starting_workers() -> Iterator[None]:
    """Around the start of worker processes: they begin with the ending signals blocked, and so miss none of them."""
    if not hasattr(signal, "pthread_sigmask"):  # Windows, where no signal goes to a group
        yield
        return
    before = signal.pthread_sigmask(signal.SIG_BLOCK, ENDING)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def leave_signals_to(parent: int, worker: int) -> None:
    """In a worker, whatever its number: only the process ``parent`` may end it, and it ends with that one.

    SLURM, Kubernetes and timeout(1) signal every process of a group. A worker that obeyed would make its parent fail
    with "DataLoader worker is killed" before that could save anything.
    """
    if not hasattr(signal, "sigtimedwait"):  # macOS, Windows
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        return
    signal.pthread_sigmask(signal.SIG_BLOCK, ENDING)
    real = os.getppid() if multiprocessing.get_start_method() == "forkserver" else parent
    threading.Thread(target=_watch, args=(parent, real), daemon=True).start()


def _watch(parent: int, real: int) -> None:
    """parent: who may end this process. real: what the system says is its parent, while that lives."""
    while os.getppid() == real:
        came = signal.sigtimedwait([signal.SIGTERM], WATCH)
        if came is not None and came.si_pid == parent:
            break
    os._exit(0)
