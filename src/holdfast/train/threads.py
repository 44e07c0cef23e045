"""How many threads a training on a CPU takes. Open this file to change when a network is too small for several."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import torch
from torch import nn

from holdfast.train.training_facts import work_per_layer

SMALL = 20_000_000
"""Multiplications per layer and batch up to which one thread trains. Threads meet after every layer, and where a layer
takes microseconds a second one gains little, and everything is lost that waits for it beside other work. Two threads
against one on two cores (benchmarks/cpu_threads.py): 11 million, the small network at 16 pixels, 1.1 to 1.5 times as
fast alone and half as fast beside a busy process; 34 million, at 28 pixels, 1.4 to 1.7 times and 0.7 times."""


@contextmanager
def fitting_threads(network: nn.Module, shape: Sequence[int], batch_size: int) -> Iterator[None]:
    """One thread for a small network on a CPU, where the environment does not say how many; restored afterwards.

    It follows from network, image and batch alone, never from how busy the machine is: results would depend on that.
    """
    before = torch.get_num_threads()
    if before == 1 or "OMP_NUM_THREADS" in os.environ or work_per_layer(network, shape) * batch_size > SMALL:
        yield
        return
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)
