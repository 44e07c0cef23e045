"""Work that the tests of several ranks do in processes of their own, and how those are started."""

from __future__ import annotations

import io
import multiprocessing
import os
import socket
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from holdfast.train.distributed import joined

PARTS = multiprocessing.get_context("forkserver")
"""Processes that begin with torch imported: the server is started once, and each rank is a fork of it."""
PARTS.set_forkserver_preload(["tests.train.rank_work", "tests.train.rank_trainings", "holdfast.audits.run_audit"])


def environment(rank: int, size: int, port: int) -> dict[str, str]:
    """What torchrun gives a rank."""
    values = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": size, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
    return {name: str(value) for name, value in values.items()}


def free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        port: int = found.getsockname()[1]
        return port


def in_ranks(size: int, work: Callable[..., Mapping[str, Any]], *args: Any) -> list[dict[str, Any]]:
    """What ``work(ranks, *args)`` gives on each of so many ranks; an error of any of them is raised here."""
    port, started = free_port(), []
    for rank in range(size):
        here, there = PARTS.Pipe()
        process = PARTS.Process(target=_be_rank, args=(environment(rank, size, port), there, work, args))
        process.start()
        started.append((process, here))
        there.close()
    results: list[dict[str, Any]] = []
    for process, here in started:
        try:
            results.append(torch.load(io.BytesIO(here.recv_bytes()), weights_only=True))
        except EOFError:
            results.append({"error": "ended without a word"})
        process.join()
    assert not any("error" in one for one in results), [one.get("error") for one in results]
    return results


def _be_rank(variables: dict[str, str], there: Any, work: Callable[..., Mapping[str, Any]], args: Any) -> None:
    os.environ.update(variables)
    torch.set_num_threads(1)
    file = io.BytesIO()
    try:
        with joined("cpu") as ranks:
            result = dict(work(ranks, *args))
    except BaseException as error:
        import traceback

        result = {"error": "".join(traceback.format_exception(error))}
    torch.save(result, file)
    there.send_bytes(file.getvalue())


class Net(nn.Module):
    """Convolution, BatchNorm, a hidden layer; in float64, whatever it is given."""

    def __init__(self, num_classes: int = 3) -> None:
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(1, 4, 3, stride=2), nn.BatchNorm2d(4), nn.ReLU())
        self.block = nn.Sequential(nn.Conv2d(4, 6, 2), nn.Tanh(), nn.Conv2d(6, 6, 2), nn.Flatten())
        self.head = nn.Linear(6, num_classes)
        self.double()

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.head(self.block(self.stem(x.double())))
        return out
