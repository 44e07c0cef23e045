"""What an executor is, what it hands back, and the simplest of them: one training after the other, in this process.
Open this file to write another one, or to change what runs without --parallel."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any, Protocol, Self

from holdfast.errors import HoldfastError

PER_GPU = 2
"""Trainings at once on a GPU where ``auto`` decides."""


@dataclass(frozen=True)
class WorkerDied:
    """What comes of a call whose worker has ended without an answer. why: how, in words."""

    why: str


@dataclass(frozen=True)
class Crashed:
    """What comes of a call that raised. trace: where, as text, for what was not meant for the user."""

    error: BaseException
    trace: str


Call = Callable[[Any, Any], Any]
"""Of an argument and what all calls share; both are sent to other processes, and so is the result."""


class Executor(Protocol):
    """Calls a function on arguments. Used as a context: at its end workers are gone, in good order or not."""

    def begin(self, call: Call, shared: Any) -> Self:
        """What to call. shared: its second argument, sent to a worker once."""

    @property
    def workers(self) -> int:
        """Calls at once, at most; known while the context is open."""

    @property
    def free(self) -> bool:
        """Whether another call can be taken now."""

    def submit(self, key: str, argument: Any) -> None: ...

    def wait(self, seconds: float) -> list[tuple[str, Any]]:
        """Calls that have ended, as (key, result, WorkerDied or Crashed); waits that long for one."""

    def kill(self, key: str) -> None:
        """End a call whose worker does not answer; it is handed back as WorkerDied."""

    def __enter__(self) -> Self: ...

    def __exit__(self, *error: object) -> None: ...


class ThisProcess:
    """Calls at once whatever is submitted. threads: of torch meanwhile; as they are where None."""

    workers = 1

    def __init__(self, *, threads: int | None = None) -> None:
        self.threads = threads
        self._ended: list[tuple[str, Any]] = []
        self._restore = ExitStack()

    def begin(self, call: Call, shared: Any) -> Self:
        self._call, self._shared = call, shared
        return self

    @property
    def free(self) -> bool:
        return not self._ended

    def submit(self, key: str, argument: Any) -> None:
        result: Any
        try:
            result = self._call(argument, self._shared)
        except HoldfastError as error:
            result = Crashed(error, "")
        self._ended.append((key, result))

    def wait(self, seconds: float) -> list[tuple[str, Any]]:
        ended, self._ended = self._ended, []
        if not ended:
            time.sleep(seconds)
        return ended

    def kill(self, key: str) -> None:
        """There is nothing to kill: a call has ended when submit returns."""

    def __enter__(self) -> Self:
        if self.threads is not None:
            import torch  # not above: workers settle how threads wait before they import it

            self._restore.callback(torch.set_num_threads, torch.get_num_threads())
            torch.set_num_threads(self.threads)
        return self

    def __exit__(self, *error: object) -> None:
        self._restore.close()
