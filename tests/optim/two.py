"""Work in two processes that can speak to each other, started once for all tests of a file."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from filelock import FileLock
from torch.multiprocessing import start_processes

from tests.train.ranks import PROCESSES

Work = Callable[[int], dict[Any, Any]]


def found_by_both(work: Work, factory: pytest.TempPathFactory) -> list[dict[Any, Any]]:
    """What ``work(rank)`` gave in each process; in one start of the two, however many workers run the tests."""
    folder = factory.getbasetemp()
    folder = (folder.parent if "PYTEST_XDIST_WORKER" in os.environ else folder) / f"two-{work.__module__}"
    with FileLock(f"{folder}.lock"):
        if not folder.exists():
            folder.mkdir()
            _start(work, folder)
    return [torch.load(folder / f"{rank}.pt", weights_only=True) for rank in range(2)]


def _run(rank: int, work: Work, folder: str) -> None:
    torch.set_num_threads(1)
    dist.init_process_group(
        "gloo", init_method=f"file://{folder}/meet", rank=rank, world_size=2, timeout=timedelta(seconds=60)
    )
    torch.save(work(rank), f"{folder}/{rank}.pt")
    dist.barrier()
    dist.destroy_process_group()


def _start(work: Work, folder: Path) -> None:
    started = start_processes(
        _run, (work, str(folder)), nprocs=2, join=False, start_method=PROCESSES.get_start_method()
    )
    assert started is not None
    deadline = time.monotonic() + 300
    while time.monotonic() < deadline:
        if started.join(timeout=30):  # also comes back, with False, when the first of the two is done
            return
    for process in started.processes:
        process.kill()
    pytest.fail("the two processes did not finish")
