"""Several computations at once on a GPU, for those too small to fill it alone.

What runs beside begins after what is under way and is over before what follows, so memory is never reused too early.
In a CUDA graph it becomes a parallel branch. Elsewhere one comes after the other.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any, TypeVar

import torch

A = TypeVar("A")
B = TypeVar("B")


def side_by_side(first: Callable[[], A], second: Callable[[], B], device: torch.device) -> tuple[A, B]:
    """Results of both."""
    if device.type != "cuda":
        return first(), second()
    here, there = torch.cuda.current_stream(device), _stream(device, "side by side")
    there.wait_stream(here)
    with torch.cuda.stream(there):
        one = first()
    other = second()
    here.wait_stream(there)
    return one, other


def ahead(
    prepare: Callable[[], A], aside: Callable[[A], Any], main: Callable[[A], B], device: torch.device
) -> tuple[A, B]:
    """Results of ``prepare`` and of ``main``, which needs the first; so does ``aside``, which runs beside it.

    ``prepare`` and ``aside`` share a stream: a backward pass runs where its forward pass ran.
    """
    if device.type != "cuda":
        prepared = prepare()
        aside(prepared)
        return prepared, main(prepared)
    here, there = torch.cuda.current_stream(device), _stream(device, "ahead")
    there.wait_stream(here)
    with torch.cuda.stream(there):
        prepared = prepare()
        here.wait_event(there.record_event())
        aside(prepared)
    result = main(prepared)
    here.wait_stream(there)
    return prepared, result


@cache
def _stream(device: torch.device, purpose: str) -> torch.cuda.Stream:
    return torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
