"""One training after the other, in this process. Open this file to change what runs without --parallel."""

from __future__ import annotations

import time
from contextlib import ExitStack
from typing import Any, Self

import torch

from holdfast.errors import HoldfastError
from holdfast.executors.executor_protocol import Call, Crashed


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
            self._restore.callback(torch.set_num_threads, torch.get_num_threads())
            torch.set_num_threads(self.threads)
        return self

    def __exit__(self, *error: object) -> None:
        self._restore.close()
