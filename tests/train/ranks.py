"""Processes that train together in tests, and what they do. Importable by name, since they begin with this module."""

from __future__ import annotations

import io
import multiprocessing
import os
import resource
import signal
import sys
import traceback
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed import TCPStore
from torch.distributed.launcher.api import LaunchConfig, elastic_launch

from holdfast.cli import main
from holdfast.data import loaders
from holdfast.parts import METHODS
from holdfast.settings import TrainSettings, build
from holdfast.train import train
from holdfast.train.distributed import joined
from holdfast.train.engine import Trainer
from tests.conftest import brisk, flat_weights, make_data

PROCESSES = multiprocessing.get_context("forkserver")
"""Forks of a process that has torch imported already, and nothing running."""
PROCESSES.set_forkserver_preload(["tests.train.ranks", "holdfast.comparisons.single_run", "torch._dynamo", "sklearn"])

CASES = [(method, ascent) for method in sorted(METHODS) for ascent in ("none", "sam", "fsam")]
PLAIN = {"device": "cpu", "batch_size": 10, "epochs": 1, "lr": 0.05, "sync_batchnorm": True, "eval_every": 0}


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


def trained(changes: Mapping[str, Any]) -> dict[str, Tensor]:
    """Weights, statistics, what the method remembers, and the record of a short training in float64.

    Of 23 images, in batches of 10, 10 and 3; tested on 7.
    """
    torch.set_default_dtype(torch.float64)
    try:
        run = train(build(TrainSettings, {**PLAIN, **changes}), data=make_data(23, groups=2, test=7), model=Net)
    finally:
        torch.set_default_dtype(torch.float32)
    last = run.history[-1]
    record = [last[key] for key in ("train_loss", "train_accuracy", "test_loss", "test_accuracy", "images")]
    return {
        "weights": flat_weights(run.model),
        "statistics": torch.cat([b.double().flatten() for b in run.model.buffers()]),
        "method": torch.cat([torch.zeros(1), *(b.double().flatten() for b in run.state.state_dict().values())]),
        "record": torch.tensor(record, dtype=torch.float64),
    }


def case(method: str, ascent: str = "none", **more: object) -> dict[str, object]:
    return {"method": brisk(method), "ascent": ascent, **more}


def trained_all(ranks: object, cases: Sequence[Mapping[str, Any]]) -> dict[str, dict[str, Tensor]]:
    return {str(n): trained(one) for n, one in enumerate(cases)}


def trained_on_files(ranks: Any, folder: str) -> dict[str, Tensor]:
    """Weights of a training on image files, of which the second host would not keep any in memory."""
    if ranks.rank:
        loaders.SMALL = 0
    given = {"data": folder, "model": "convnet", "method": "mixup", "epochs": 2, "batch_size": 6, "device": "cpu"}
    return {"weights": flat_weights(train(build(TrainSettings, given)).model)}


def in_ranks(size: int, work: Callable[..., Mapping[str, Any]], *args: Any) -> list[dict[str, Any]]:
    """What ``work(ranks, *args)`` gives on each of so many ranks; an error of any of them is raised here."""
    store, started = agent_store(), []
    for rank in range(size):
        here, there = PROCESSES.Pipe()
        process = PROCESSES.Process(target=_work, args=(variables(rank, size, store.port), there, work, args))
        process.start()
        there.close()
        started.append((process, here))
    results: list[dict[str, Any]] = []
    for process, here in started:
        try:
            results.append(torch.load(io.BytesIO(here.recv_bytes()), weights_only=True))
        except EOFError:
            results.append({"error": "ended without a word"})
        process.join()
    assert not any("error" in one for one in results), "\n".join(str(one.get("error")) for one in results)
    return results


def _work(given: dict[str, str], there: Any, work: Callable[..., Mapping[str, Any]], args: Any) -> None:
    os.environ.update(given)
    torch.set_num_threads(1)
    try:
        with joined("cpu") as ranks:
            result = dict(work(ranks, *args))
    except BaseException as error:
        result = {"error": "".join(traceback.format_exception(error))}
    file = io.BytesIO()
    torch.save(result, file)
    there.send_bytes(file.getvalue())


def variables(rank: int, size: int, port: int, *, restart: int = 0) -> dict[str, str]:
    """What torchrun gives a rank."""
    values: dict[str, object] = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": size}
    values |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port, "TORCHELASTIC_RESTART_COUNT": restart}
    values |= {"TORCHELASTIC_USE_AGENT_STORE": True}
    return {name: str(value) for name, value in values.items()}


def agent_store() -> TCPStore:
    """The store that torchrun's own process keeps for its ranks."""
    return TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)


class Commands:
    """The same command in several ranks: their exit codes, and what each wrote to stderr."""

    def __init__(self, words: Sequence[str] | Sequence[Sequence[str]], logs: Path, **options: Any) -> None:
        self.store = agent_store()
        restart = options.pop("restart", 0)
        each = [list(words)] * 2 if isinstance(words[0], str) else [list(own) for own in words]
        self.logs = [logs / f"rank{rank}-{restart}.log" for rank in range(len(each))]
        self.processes = [
            PROCESSES.Process(
                target=command,
                args=(variables(rank, len(each), self.store.port, restart=restart), own, str(log)),
                kwargs=options,
            )
            for rank, (own, log) in enumerate(zip(each, self.logs, strict=True))
        ]
        for process in self.processes:
            process.start()

    def end(self) -> tuple[list[int | None], list[str]]:
        for process in self.processes:
            process.join(30)
        left = [process for process in self.processes if process.is_alive()]
        for process in left:
            process.kill()
        assert not left, "a rank hangs"
        return [process.exitcode for process in self.processes], [log.read_text() for log in self.logs]


def under_an_agent(words: list[str], log: str) -> None:
    """A command in two ranks of torchrun's own agent; rank 1 is killed in its first life."""
    config = LaunchConfig(
        min_nodes=1,
        max_nodes=1,
        nproc_per_node=2,
        max_restarts=1,
        monitor_interval=0.1,
        start_method="fork",
        rdzv_backend="c10d",
        rdzv_endpoint="localhost:0",
        run_id="test",
    )
    os.dup2(os.open(log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC), 2)
    elastic_launch(config, rank_under_an_agent)(words)


def rank_under_an_agent(words: list[str]) -> None:
    first_life = os.environ["TORCHELASTIC_RESTART_COUNT"] == "0"
    command(dict(os.environ), words, "", at_step=6 if first_life else 0, rank=1, signum=signal.SIGKILL)


def command(
    given: dict[str, str],
    words: list[str],
    log: str,
    *,
    at_step: int = 0,
    rank: int | None = 0,
    signum: int = signal.SIGTERM,
    largest_file: int = 0,
) -> None:
    """``holdfast`` in this process. at_step: when this rank, or each (None), gets a signal. largest_file: in bytes."""
    os.environ.update(given)
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
    if log:
        os.dup2(os.open(log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC), 2)
    torch.set_num_threads(1)
    mine = rank is None or given["RANK"] == str(rank)
    if largest_file and mine:
        resource.setrlimit(resource.RLIMIT_FSIZE, (largest_file, largest_file))
    asked = Trainer._must_stop

    def signalled(self: Trainer, *, wait: bool = False) -> bool:
        if mine and at_step == self.at.step:
            os.kill(os.getpid(), signum)
        return asked(self, wait=wait)

    Trainer._must_stop = signalled  # type: ignore[method-assign]
    if code := main(words):
        sys.exit(code)
