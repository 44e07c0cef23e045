"""Trainings at once against one after the other, and what scheduling them costs.

    python benchmarks/parallel.py gpu [--at-once 1 2 4] [--out benchmarks/results/parallel_gpu.json]
    python benchmarks/parallel.py cpu [--at-once 1 2 ...] [--out benchmarks/results/parallel_cpu.json]
    python benchmarks/parallel.py overhead [--cells 1000] [--at-once 16] [--out benchmarks/results/scheduling.json]

gpu: N trainings of a ResNet-18 with CIFAR stem, then of one with ImageNet stem, on 10,000 images of 32 × 32 noise in
bf16, as N local processes on one GPU with NVIDIA's MPS (--turns: without it too, where they take turns). The gain is
that of images per second of all together, by the epochs in the middle, when all of them run. cpu: twelve trainings of a
small network on the embedded digits with one thread each; the clock runs from the start of the first to the end of the
last. overhead: cells that sleep for a second under their leases; the ideal is cells × 1 s ÷ workers.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
from record import write_result

from holdfast.comparisons.running import compare
from holdfast.comparisons.single_run import CellOutcome, CellTask, train_cells
from holdfast.executors import local_processes, make_executor
from holdfast.executors.leases import leased
from holdfast.settings import TrainSettings
from holdfast.settings.command_settings import EngineSettings

GPU = {"precision": "bf16", "channels_last": True, "eval_every": 0, "checkpoint_every": 1000, "crop": 4, "flip": True,
       "batch_size": 128, "optimizer": "sgd", "lr": 0.05}  # fmt: skip
NETS = {"CIFAR stem": ("cifar-resnet18", 1), "ImageNet stem": ("torchvision:resnet18", 3)}
"""Networks, and how many times the epochs: the second is faster, and all must be at work for some seconds."""
RUNS = 12
MPS = local_processes.MPS


def span(out: Path) -> tuple[float, float]:
    """(seconds from the start of the first training to the end of the last training, sum of the seconds in epochs)."""
    records = [[json.loads(line) for line in path.read_text().splitlines()] for path in out.glob("*/metrics.jsonl")]
    first = min(path.stat().st_mtime for path in out.glob("*/run.yaml"))
    last = max(path.stat().st_mtime for path in out.glob("*/model.safetensors"))
    return last - first, sum(record["seconds"] for own in records for record in own)


def timed(at_once: int, settings: dict[str, Any], *, runs: int) -> dict[str, float]:
    with tempfile.TemporaryDirectory() as place:
        out = Path(place) / "c"
        began = time.monotonic()
        compare(out=out, methods=["erm"], seeds=runs, parallel=at_once, progress=False, **settings)
        wall = time.monotonic() - began
        seconds, training = span(out)
        speed = at_once * middle_speed(out)
    return {"at_once": at_once, "seconds": seconds, "wall_s": wall, "training_s": training, "images_per_second": speed}


def middle_speed(out: Path) -> float:
    """Median images per second of one training, over the epochs in the middle of each."""
    speeds = []
    for path in out.glob("*/metrics.jsonl"):
        own = [json.loads(line)["images_per_second"] for line in path.read_text().splitlines()]
        speeds += own[len(own) // 4 : max(len(own) // 4 + 1, 3 * len(own) // 4)]
    return statistics.median(speeds)


def table(rows: list[dict[str, Any]], by: str) -> None:
    """Print rows with their gain over one at a time, in seconds or in images per second."""
    one = {row.get("net", ""): row[by] for row in rows if row["at_once"] == 1}
    for row in rows:
        ratio = row[by] / one[row.get("net", "")]
        row["gain"] = 1 / ratio if by == "seconds" else ratio
        shown = {key: round(value, 2) if isinstance(value, float) else value for key, value in row.items()}
        print(json.dumps(shown), flush=True)


def gpu(args: argparse.Namespace) -> dict[str, Any]:
    rows: list[dict[str, Any]] = []
    random = np.random.default_rng(0)
    x, y = random.integers(0, 256, (args.images, 32, 32, 3), np.uint8), np.arange(args.images) % 10
    with tempfile.TemporaryDirectory() as place:
        np.savez(Path(place) / "noise.npz", x_train=x, y_train=y, x_test=x[:100], y_test=y[:100])
        base = {**GPU, "data": str(Path(place) / "noise.npz"), "device": args.device}
        installed = shutil.which(MPS) is not None
        for stem, (net, longer) in NETS.items():
            for mps in (True, False) if args.turns else (True,):
                for at_once in args.at_once if mps else [n for n in args.at_once if n > 1]:
                    local_processes.MPS = MPS if mps else "no-such-program"
                    found = timed(at_once, {**base, "model": net, "epochs": longer * args.epochs}, runs=at_once)
                    rows.append({"net": stem, "mps": mps and installed and at_once > 1, **found})
                    print(rows[-1], flush=True)
    table(rows, "images_per_second")
    return {"epochs": args.epochs, "images": args.images, "mps_installed": installed, "rows": rows}


def cpu(args: argparse.Namespace) -> dict[str, Any]:
    base = {"data": "coloured-digits", "epochs": 4, "device": "cpu"}
    rows: list[dict[str, Any]] = [timed(at_once, base, runs=RUNS) for at_once in args.at_once]
    table(rows, "seconds")
    return {"runs": RUNS, "epochs": 4, "rows": rows}


def sleep_cell(task: CellTask, shared: object) -> CellOutcome:
    """A cell of one second: its lease is taken, renewed and given back as that of a training."""
    with leased(task.out, task.name, seconds=task.lease, driver=task.driver, evict=task.evict) as lease:
        assert lease is not None
        lease.adopt()
        lease.folder.mkdir()
        time.sleep(1.0)
    return CellOutcome("done")


def overhead(args: argparse.Namespace) -> dict[str, Any]:
    workers = args.at_once[-1]
    where = EngineSettings(parallel=str(workers), engine=args.engine)
    with tempfile.TemporaryDirectory() as place:
        tasks = [CellTask(f"cell{i:04d}", Path(place), TrainSettings()) for i in range(args.cells)]
        executor = make_executor(where, device="cpu", calls=len(tasks))
        began, first, ended = time.monotonic(), 0.0, 0
        for _ in train_cells(tasks, executor, call=sleep_cell):
            first = first or time.monotonic() - began
            ended += 1
        seconds = time.monotonic() - began
    assert ended == args.cells
    ideal = args.cells / workers
    found = {"cells": args.cells, "workers": workers, "engine": args.engine, "seconds": seconds, "ideal_s": ideal}
    return found | {"start_s": first - 1.0, "overhead": seconds / ideal - 1}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("gpu", "cpu", "overhead"))
    parser.add_argument("--device", default="cuda", help="of gpu; cpu to rehearse it")
    parser.add_argument("--turns", action="store_true", help="of gpu: measure without MPS too")
    parser.add_argument("--at-once", type=int, nargs="+", default=[1, 2, 4])
    parser.add_argument("--epochs", type=int, default=30, help="of gpu")
    parser.add_argument("--images", type=int, default=10_000)
    parser.add_argument("--cells", type=int, default=1000)
    parser.add_argument("--engine", default="local")
    parser.add_argument("--out", type=Path)
    args = parser.parse_args()
    os.environ["PYTHONPATH"] = os.pathsep.join([str(Path(__file__).parent), os.environ.get("PYTHONPATH", "")])
    figures = {"gpu": gpu, "cpu": cpu, "overhead": overhead}[args.what](args)
    print(json.dumps({key: value for key, value in figures.items() if key != "rows"}))
    if args.out is not None:
        write_result(args.out, figures, gpu=args.what == "gpu")


if __name__ == "__main__":
    from parallel import main as own_main  # workers import this file by its name, not as __main__

    own_main()
