"""Two computations at once on a GPU."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import TypeVar

import torch

A = TypeVar("A")
B = TypeVar("B")


def side_by_side(first: Callable[[], A], second: Callable[[], B], device: torch.device) -> tuple[A, B]:
    """Results of both, computed at the same time on a GPU; for computations too small to fill it alone.

    Both begin after what is under way and are over before what follows, so memory is never reused too early. In a
    CUDA graph they become parallel branches.
    """
    if device.type != "cuda":
        return first(), second()
    here, there = torch.cuda.current_stream(device), _second_stream(device)
    there.wait_stream(here)
    with torch.cuda.stream(there):
        one = first()
    other = second()
    here.wait_stream(there)
    return one, other


@cache
def _second_stream(device: torch.device) -> torch.cuda.Stream:
    return torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
