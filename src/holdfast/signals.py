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
WAIT = 2.0
"""Seconds that a signal waits for a batch which is being fetched: on a dead disk it never comes."""
WAIT_FOR_WORKERS = 60.0
"""The same for workers which are being started: where they are not forked, each imports torch."""
WATCH = 0.5
"""Seconds after which a worker notices that its parent was killed, at the latest."""

_taken = -TOGETHER  # when the last signal came that was acted on
_deferring = 0  # how many deferred_signals are open


class Stop:
    """The signal that came, if one did."""

    signum: int | None = None


@contextmanager
def deferred_signals() -> Iterator[Stop]:
    """Keep the first SIGINT or SIGTERM in the yielded object; another one, ``TOGETHER`` later, acts at once."""
    global _deferring
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
    _deferring += 1
    try:
        yield stop
    finally:
        _deferring -= 1
        restore()


@contextmanager
def held_signals(wait: float = WAIT) -> Iterator[None]:
    """While open, SIGINT and SIGTERM wait for the end of it, so many seconds at most: they act then.

    For what must not be left half done: torch's loader, ended in the middle of starting its workers or of taking
    a batch from one, complains when it is removed, and so do its workers.
    """
    if _deferring or threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {s: handler for s in ENDING if (handler := signal.getsignal(s)) is not None}
    held: list[tuple[int, threading.Timer]] = []

    def hold(signum: int, _frame: FrameType | None) -> None:
        if not held:
            overdue = threading.Timer(wait, act, (signum, threading.get_ident()))
            overdue.daemon = True
            held.append((signum, overdue))
            overdue.start()
        elif late.is_set():
            restore()
            signal.raise_signal(signum)

    def act(signum: int, thread: int) -> None:
        late.set()
        signal.pthread_kill(thread, signum)

    def restore() -> None:
        for s, handler in before.items():
            signal.signal(s, handler)

    late = threading.Event()
    for s in before:
        signal.signal(s, hold)
    try:
        yield
    finally:
        restore()
        if held and not late.is_set():
            held[0][1].cancel()
            signal.raise_signal(held[0][0])


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
    with held_signals(WAIT_FOR_WORKERS):  # another thread may take a signal that this one blocks
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
