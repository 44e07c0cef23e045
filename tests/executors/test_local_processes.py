"""What a worker on this machine makes of the call that it is given."""

from __future__ import annotations

import signal
from contextlib import suppress
from typing import Any

import pytest

from holdfast.errors import Interrupted
from holdfast.executors.executor_protocol import Crashed
from holdfast.executors.local_processes import _answer


def is_swallowed(_argument: Any, _shared: Any) -> None:
    with suppress(BaseException):
        signal.raise_signal(signal.SIGTERM)


def is_hidden(_argument: Any, _shared: Any) -> None:
    try:
        signal.raise_signal(signal.SIGTERM)
    except KeyboardInterrupt as error:
        raise ImportError("initialization failed") from error


@pytest.mark.parametrize("call", [is_swallowed, is_hidden])
def test_a_worker_ends_with_a_signal_that_its_call_did_not_let_through(call: Any) -> None:
    with pytest.raises(Interrupted):
        _answer(call, None, None)


def test_a_failure_is_an_answer() -> None:
    def fails(argument: Any, shared: Any) -> None:
        raise ValueError(f"{argument} {shared}")

    answer = _answer(fails, 1, 2)
    assert isinstance(answer, Crashed)
    assert str(answer.error) == "1 2"
    assert _answer(lambda argument, shared: argument + shared, 1, 2) == 3
