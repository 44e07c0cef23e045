"""Halves of an optimiser step as CUDA graphs in an eager loop: replayed while tensors keep their addresses."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

import torch

from holdfast.devices import CapturedCall, capture
from holdfast.optim.foreach import Tensors

Result = TypeVar("Result")


@contextmanager
def branch(tensors: Tensors) -> Iterator[Callable[[], None]]:
    """Work that a recording may run in parallel with what follows, until that calls what this yields.

    A pass over a list of tensors leaves part of the device idle, so two that do not need each other go well together.
    Outside a recording it runs in order. tensors: some of what it works on.
    """
    if not tensors or not tensors[0].is_cuda or not torch.cuda.is_current_stream_capturing():
        yield lambda: None
        return
    aside = torch.cuda.Stream()  # type: ignore[no-untyped-call]
    aside.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(aside):
        yield lambda: torch.cuda.current_stream().wait_stream(aside)


class Recordings:
    """Graphs of work done before, by what they depend on.

    An eager backward pass allocates its gradients again, but from a warm cache they get the addresses of the step
    before. Work is done eagerly the first time its key occurs, recorded the second, and replayed from then on, so that
    tensors whose addresses change cost time and nothing else.

    limit: how many keys are kept before all are forgotten.
    """

    def __init__(self, limit: int = 32) -> None:
        self._limit = limit
        self._known: dict[Hashable, CapturedCall[object] | None] = {}
        self._pool: Any = None

    def clear(self) -> None:
        """Forget everything: tensors that the work uses, other than those in its keys, have moved."""
        self._known.clear()
        self._pool = None  # a pool dies with its last graph

    def run(self, key: Hashable, work: Callable[[], Result]) -> Result:
        """What ``work`` gives. The key has to hold all that it depends on, down to the addresses of tensors.

        Replays give the tensors of the recording again, with new contents.
        """
        if torch.cuda.is_current_stream_capturing():  # somebody else's graph takes it in
            return work()
        if key not in self._known:
            if len(self._known) >= self._limit:
                self.clear()
            self._known[key] = None
            return work()
        known = self._known[key]
        if known is None:
            self._pool = self._pool or torch.cuda.graph_pool_handle()
            # without emptying the allocator's cache: the gradients' addresses would go with it
            here = torch.device("cuda", torch.cuda.current_device())
            known = self._known[key] = capture(work, device=here, pool=self._pool, empty_cache=False)
        return known()  # type: ignore[return-value]
