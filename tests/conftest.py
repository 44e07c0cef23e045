"""Small data and helpers that many tests share."""

from __future__ import annotations

import dataclasses
import gc
import os
import random
import signal
import sys
from collections.abc import Callable, Generator, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from holdfast.data import ArraySplit, Dataset
from holdfast.parts import METHODS
from holdfast.train.progress import Progress
from tests.forking import ForkServer

# Modules of papers/ are imported by path: they are not part of the package.
PAPERS = Path(__file__).parents[1] / "papers"
sys.path[:0] = [str(PAPERS), str(PAPERS / "vae-report")]

if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:  # a shell that starts tests in the background has it ignored
    signal.signal(signal.SIGINT, signal.default_int_handler)


SEED = 0
torch.manual_seed(SEED)  # networks made while a test module is imported


@pytest.fixture(autouse=True)
def _seeded() -> None:
    """Every test draws the same numbers in every run, whatever ran before it."""
    random.seed(SEED)
    np.random.seed(SEED)
    torch.manual_seed(SEED)


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--quick", action="store_true", help="every test function once, without the slow ones")


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Collect tests without looking for garbage: there is none, and looking takes a third of the time."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.enable()


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """``make quick``: a test with many parameters runs with the first of them, so that each behaviour is seen once."""
    if not config.getoption("--quick"):
        return
    kept, dropped, seen = [], [], set()
    for item in items:
        function = item.nodeid.partition("[")[0]
        (dropped if item.get_closest_marker("slow") or function in seen else kept).append(item)
        seen.add(function)
    config.hook.pytest_deselected(items=dropped)
    items[:] = kept


def make_split(n: int, classes: int, *, seed: int, groups: int = 0, side: int = 8, channels: int = 1) -> ArraySplit:
    """Noise with a bright bar at a place that tells the class: easy, but not trivial."""
    generator = torch.Generator().manual_seed(seed)
    labels = torch.arange(n) % classes
    images = torch.randint(0, 96, (n, channels, side, side), generator=generator, dtype=torch.uint8)
    for i, label in enumerate(labels.tolist()):
        images[i, :, (label * side) // classes, :] += 120
    group = torch.randint(0, groups, (n,), generator=generator) if groups else torch.full((n,), -1)
    return ArraySplit(images, labels, group)


def make_data(n: int = 96, classes: int = 3, *, groups: int = 0, channels: int = 1, test: int = 48) -> Dataset:
    return Dataset(
        name="bars",
        classes=tuple(f"bar{i}" for i in range(classes)),
        train=make_split(n, classes, seed=1, groups=groups, channels=channels),
        val=None,
        test=make_split(test, classes, seed=2, groups=groups, channels=channels),
        group_names=tuple(f"g{i}" for i in range(groups)),
    )


@pytest.fixture(scope="session", autouse=True)
def unsynced() -> Iterator[None]:
    """Files are not synced to the disk: no test cuts the power, and thousands of small ones would wait for it."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "fsync", lambda descriptor: None)
        yield


@pytest.fixture(scope="session")
def forked() -> Iterator[ForkServer]:
    """Starts commands in processes of their own that need not import torch first; see tests/forking.py."""
    with ForkServer() as server:
        yield server


@pytest.fixture
def data() -> Dataset:
    return make_data()


class SignalAt(Progress):
    """Sends this process a signal after a number of steps."""

    def __init__(self, step: int, signum: int = signal.SIGTERM) -> None:
        self.left, self.signum = step, signum

    def step(self) -> None:
        self.left -= 1
        if self.left == 0:
            signal.raise_signal(self.signum)


class Heard(Progress):
    """Remembers what it was told."""

    def __init__(self) -> None:
        self.notes: list[str] = []
        self.records: list[Mapping[str, Any]] = []

    def note(self, text: str) -> None:
        self.notes.append(text)

    def epoch(self, record: Mapping[str, Any], epochs: int) -> None:
        self.records.append(record)


def same_weights(a: nn.Module, b: nn.Module) -> bool:
    """Bit for bit, buffers included."""
    first, second = a.state_dict(), b.state_dict()
    return first.keys() == second.keys() and all(torch.equal(first[k].cpu(), second[k].cpu()) for k in first)


def flat_weights(model: nn.Module) -> Tensor:
    return torch.cat([p.detach().flatten() for p in model.parameters()])


Factory = Callable[[], nn.Module]


PLAIN: dict[str, Any] = {"precision": "fp32", "channels_last": False, "compile": False}
"""Arithmetic in which two trainings on a GPU can be compared to the last digits."""


def brisk(method: str) -> dict[str, object]:
    """A method's settings with as few inner steps, first epochs and repeated errors as it can do with."""
    known = {f.name for f in dataclasses.fields(METHODS[method].made)}
    few = {"steps": 2, "first_epochs": 2, "up": 5}
    return {"name": method, **{key: value for key, value in few.items() if key in known}}
