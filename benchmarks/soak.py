"""Many short trainings one after the other: memory, file handles and threads must not grow.

    python benchmarks/soak.py [--trainings 1000] [--engine this] [--out benchmarks/results/soak.json]
    python benchmarks/soak.py --engine ray [--out benchmarks/results/soak_ray.json]

Every training is a cell of a comparison, with its lease, checkpoint, findings and report, of a small network on 60
images of 8 × 8 noise. After every tenth, the process that trained it says what it holds. The slope is that of a
straight line through the second half: by then all that is imported or cached once is there. Ray (extra ray) runs two
workers, which keep their processes; memory of the command itself is recorded too.
"""

from __future__ import annotations

import argparse
import gc
import json
import os
import shutil
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from record import write_result

from holdfast.comparisons.single_run import CellOutcome, CellTask, train_cell, train_cells
from holdfast.executors import Executor, make_executor
from holdfast.executors.executor_protocol import ThisProcess
from holdfast.settings import TrainSettings, build
from holdfast.settings.command_settings import EngineSettings

SETTINGS = {"device": "cpu", "epochs": 1, "batch_size": 30, "workers": 0, "model": "convnet", "lr": 0.1}
HELD = ("rss_kib", "files", "threads", "tensors")
EVERY = 10
"""Trainings from one look to the next: a look at all objects takes longer than a training."""


def held() -> dict[str, int]:
    """What this process holds: resident memory, open files, threads, and tensors that Python knows."""
    gc.collect()
    status = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines())
    tensors = sum(issubclass(type(one), torch.Tensor) for one in gc.get_objects())
    files, threads = len(os.listdir("/proc/self/fd")), int(status["Threads"])
    memory = int(status["VmRSS"].split()[0])
    return {"pid": os.getpid(), **dict(zip(HELD, (memory, files, threads, tensors), strict=True))}


def measured_cell(task: CellTask, shared: Any) -> CellOutcome:
    """A cell, with what its process holds afterwards as a note."""
    outcome = train_cell(task, shared)
    said = (json.dumps(held()),) if task.settings.loop.seed % EVERY == 0 else ()
    return CellOutcome(outcome.state, outcome.error, said)


def soak(trainings: int, executor: Executor) -> Iterator[dict[str, int]]:
    """What the process of every tenth training held after it."""
    random = np.random.default_rng(0)
    x, y = random.integers(0, 256, (60, 8, 8), np.uint8), np.arange(60) % 3
    with tempfile.TemporaryDirectory() as place:
        data, out = Path(place) / "noise.npz", Path(place) / "cells"
        np.savez(data, x_train=x, y_train=y, x_test=x[:30], y_test=y[:30])
        out.mkdir()
        settings = [build(TrainSettings, {**SETTINGS, "data": str(data), "seed": seed}) for seed in range(trainings)]
        tasks = [CellTask(f"cell{number:04d}", out, own) for number, own in enumerate(settings)]
        for task, outcome in train_cells(tasks, executor, call=measured_cell):
            assert outcome.state == "done", outcome.error
            shutil.rmtree(task.place)
            if task.settings.loop.seed % EVERY == 0:
                yield json.loads(outcome.notes[-1])


def summary(samples: list[dict[str, int]]) -> dict[str, Any]:
    """Of one process: what it held after its first training, half-way and at the end, and the slope of the second
    half, per thousand trainings of its own."""
    late = samples[len(samples) // 2 :]
    slopes = {name: float(np.polyfit(np.arange(len(late)), [one[name] for one in late], 1)[0]) for name in HELD}
    ends = {name: [samples[0][name], late[0][name], late[-1][name]] for name in HELD}
    return {"looks": len(samples), "first_half_last": ends,
            "per_1000": {name: round(1000 * slope / EVERY, 2) for name, slope in slopes.items()}}  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--trainings", type=int, default=1000)
    parser.add_argument("--engine", choices=("this", "ray"), default="this")
    parser.add_argument("--out", type=Path)
    args = parser.parse_args()
    here = str(Path(__file__).parent)
    os.environ["PYTHONPATH"] = os.pathsep.join([here, os.environ.get("PYTHONPATH", "")])
    sys.path.insert(0, here)
    executor: Executor = ThisProcess(threads=1)
    if args.engine == "ray":
        os.environ |= {"RAY_AUTH_MODE": "disabled", "RAY_USAGE_STATS_ENABLED": "0"}
        executor = make_executor(EngineSettings(engine="ray", parallel="2"), device="cpu", calls=args.trainings)
    began, by_process = time.monotonic(), {}
    driver: list[dict[str, int]] = []
    for number, sample in enumerate(soak(args.trainings, executor), start=1):
        by_process.setdefault(sample["pid"], []).append(sample)
        if args.engine == "ray":
            driver.append(held())
        if number % 5 == 0:
            print(number * EVERY, json.dumps(sample), f"{time.monotonic() - began:.0f} s", flush=True)
    figures: dict[str, Any] = {"trainings": args.trainings, "engine": args.engine}
    figures["workers"] = [summary(own) for own in by_process.values()]
    if args.engine == "ray":
        figures["driver"] = summary(driver)
    print(json.dumps(figures, indent=1))
    if args.out is not None:
        write_result(args.out, figures, gpu=False)


if __name__ == "__main__":
    from soak import main as own_main  # workers import this file by its name, not as __main__

    own_main()
