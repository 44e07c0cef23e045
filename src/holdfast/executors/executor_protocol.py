"""What an executor is, and what it hands back. Open this file to write another one."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol, Self

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
