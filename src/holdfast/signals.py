"""Signals: what Ctrl-C, SIGTERM and a kill do to a command, to a training and to the workers that read images.

Open this file to change how work is ended from outside.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from types import FrameType
from typing import Any

from holdfast.errors import Interrupted, interruption_behind

ENDING = (signal.SIGINT, signal.SIGTERM)
TOGETHER = 1.0
"""Seconds within which a second signal is the same wish: timeout(1) signals the process, then its whole group."""
WAIT = 2.0
"""Seconds that a signal waits for a batch which is being fetched: on a dead disk it never comes."""
WAIT_FOR_WORKERS = 60.0
"""The same for workers which are being started: where they are not forked, each imports torch."""
AGAIN = 0.05
"""Seconds after which a signal comes again that nothing has heard."""
WATCH = 0.5
"""Seconds after which a worker notices that its parent was killed, at the latest."""

Handler = Callable[[int, FrameType | None], Any] | int

_taken = -TOGETHER  # when the last signal came that was acted on
_deferring = 0  # how many deferred_signals are open


class Stop:
    """The signal that came, if one did."""

    signum: int | None = None


@dataclass
class _Repeating:
    """The thread that sends a signal again, where one does."""

    thread: threading.Thread | None = None
    signum: int = signal.SIGTERM
    paused: bool = False


@contextmanager
def deferred_signals() -> Iterator[Stop]:
    """Keep the first SIGINT or SIGTERM in the yielded object; another one, ``TOGETHER`` later, acts at once.

    Whoever opens it looks at the object and raises :class:`Interrupted`. A signal that comes after the last look acts
    at the end.
    """
    global _deferring
    stop = Stop()
    if not _may_set_handlers():
        yield stop
        return
    before = _handlers(*ENDING)

    def note(signum: int, _frame: FrameType | None) -> None:
        if _repeated():
            return
        if stop.signum is not None:  # somebody does not want to wait for the end of the step
            _set_handlers(before)
            _act_on(signum)
        stop.signum = signum

    _deferring += 1
    try:
        _set_handlers(dict.fromkeys(before, note))
        yield stop
    except Exception as error:
        if stop.signum is not None:  # what failed may be caught, and the work go on: a signal ends it all the same
            raise Interrupted(stop.signum, f"interrupted: {error}") from error
        raise
    finally:
        _deferring -= 1
        _set_handlers(before)
    if stop.signum is not None:
        _act_on(stop.signum)


@contextmanager
def held_signals(wait: float = WAIT) -> Iterator[None]:
    """While open, SIGINT and SIGTERM wait for the end of it, so many seconds at most: they act then.

    For what must not be left half done: torch's loader, ended in the middle of starting its workers or of taking
    a batch from one, complains when it is removed, and so do its workers.
    """
    if _deferring or threading.current_thread() is not threading.main_thread():
        yield
        return
    before = _handlers(*ENDING)
    held: list[tuple[int, threading.Timer]] = []

    def hold(signum: int, _frame: FrameType | None) -> None:
        if not held:
            overdue = threading.Timer(wait, act, (signum, threading.get_ident()))
            overdue.daemon = True
            held.append((signum, overdue))
            overdue.start()
        elif late.is_set():
            _set_handlers(before)
            signal.raise_signal(signum)

    def act(signum: int, thread: int) -> None:
        late.set()
        signal.pthread_kill(thread, signum)

    late = threading.Event()
    try:
        _set_handlers(dict.fromkeys(before, hold))
        yield
    finally:
        _set_handlers(before)
        if held and not late.is_set():
            held[0][1].cancel()
            signal.raise_signal(held[0][0])


@contextmanager
def ended_by_term() -> Iterator[None]:
    """While open, SIGTERM ends the work as Ctrl-C does: what was done is kept, workers are released.

    :class:`Interrupted` is raised wherever the signal happens to come, and not every place lets an exception through.
    Python drops what is raised while it removes an object (``__del__``, a generator, the callback of a weak reference,
    such as the one that every import leaves): there the signal comes again until it is heard. Where some code has an
    ``except: pass``, it acts at the end.
    """
    if not _may_set_handlers():
        yield
        return
    unheard: list[int] = []  # the signal that came, until an exception for it leaves the block
    repeating, over = _Repeating(), threading.Event()

    def end(signum: int, frame: FrameType | None) -> None:
        if _finalising(frame):
            come_again(signum)
        elif not _repeated():
            repeating.paused = True
            unheard.append(signum)
            raise Interrupted(signum)

    def come_again(signum: int) -> None:
        unheard.append(signum)
        repeating.signum, repeating.paused = signum, False
        if repeating.thread is None:  # this may run inside of itself
            repeating.thread = threading.Thread(target=repeat, args=(threading.get_ident(),), daemon=True)
            repeating.thread.start()

    def repeat(thread: int) -> None:
        while not over.wait(AGAIN):
            if not repeating.paused:
                repeating.paused = repeating.signum == signal.SIGINT  # whose handler is not ours and never pauses it
                signal.pthread_kill(thread, repeating.signum)

    def unraisable_hook(unraisable: sys.UnraisableHookArgs) -> None:
        global _taken
        if not isinstance(unraisable.exc_value, KeyboardInterrupt):
            hook(unraisable)
            return
        _taken = -TOGETHER
        come_again(getattr(unraisable.exc_value, "signum", signal.SIGINT))

    before, hook = _handlers(signal.SIGTERM), sys.unraisablehook
    try:
        sys.unraisablehook = unraisable_hook
        _set_handlers(dict.fromkeys(before, end))
        yield
    except Exception as error:
        if unheard and interruption_behind(error) is not None:
            raise Interrupted(unheard[0]) from error
        raise
    else:
        if unheard:
            raise Interrupted(unheard[0])
    finally:
        repeating.paused = True
        try:
            over.set()
            if repeating.thread is not None:
                repeating.thread.join()
        finally:
            sys.unraisablehook = hook
            _set_handlers(before)


def _handlers(*signals: signal.Signals) -> dict[signal.Signals, Handler]:
    """The present handlers, less those that were not set by Python and could not be set again."""
    return {s: handler for s in signals if (handler := signal.getsignal(s)) is not None}


def _set_handlers(handlers: Mapping[signal.Signals, Handler]) -> None:
    """Set them all. A signal that came before that acts by its old handler: what that raises is raised at the end."""
    raised: BaseException | None = None
    for signum, handler in handlers.items():
        while True:
            try:
                signal.signal(signum, handler)
                break
            except KeyboardInterrupt as error:
                raised = error
    if raised is not None:
        raise raised


def _act_on(signum: int) -> None:
    """Have a signal that was kept back act by the handler that is set now, which must not take it for a repetition."""
    global _taken
    _taken = -TOGETHER
    signal.raise_signal(signum)


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
    """Whether an exception that is raised here would be dropped, as far as frames tell."""
    while frame is not None:
        if frame.f_code.co_name in ("__del__", "end_workers", "unraisable_hook"):
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
