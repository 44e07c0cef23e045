"""What several ranks gain over one process, and what one rank costs. Open it to measure a machine.

    python benchmarks/ranks.py --device cpu --sizes 1 2         two gloo ranks with one thread each, global batch 512
    python benchmarks/ranks.py --device cuda --sizes 1          the captured step with NCCL in its graph

Each number is the best of several epochs in several runs, which take turns, since other work slows a run down but
nothing speeds it up.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import torch
from record import write_result

EPOCHS = 4


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--model", default="convnet")
    parser.add_argument("--batch-size", type=int, default=512)
    parser.add_argument("--batches", type=int, default=4, help="per epoch")
    parser.add_argument("--ascent", default="none")
    parser.add_argument("--precision", default="fp32")
    parser.add_argument(
        "--sizes", type=int, nargs="+", default=[1, 2], help="numbers of ranks; a plain process is always measured"
    )
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--worker", type=Path, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.worker is not None:
        work(args)
        return
    speeds: dict[str, list[tuple[float, float]]] = {}
    for _ in range(args.repeats):
        for size in (0, *args.sizes):
            name = f"{size} ranks" if size else "one process"
            speeds.setdefault(name, []).append(measure(size))
            print(name, "{:.0f} images/s, {:.3f} CPU ms per image".format(*speeds[name][-1]), flush=True)
    best = {name: max(speed for speed, _ in found) for name, found in speeds.items()}
    spent = {name: min(cpu for _, cpu in found) for name, found in speeds.items()}
    figures = {
        **{key: getattr(args, key) for key in ("model", "batch_size", "ascent", "precision")},
        "images_per_second": {name: round(value, 1) for name, value in best.items()},
        "gain": {name: round(value / best["one process"], 3) for name, value in best.items()},
        "cpu_ms_per_image": {name: round(value, 4) for name, value in spent.items()},
        "load": [round(value, 2) for value in os.getloadavg()],
    }
    print(json.dumps(figures, indent=2))
    if args.out is not None:
        write_result(args.out, figures, gpu=args.device != "cpu")


def measure(size: int) -> tuple[float, float]:
    """(images per second, CPU milliseconds per image) of one training in processes of its own."""
    with tempfile.TemporaryDirectory() as folder:
        start = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(size)] if size else []
        given = [__file__, *sys.argv[1:], "--worker", folder]
        environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
        subprocess.run([sys.executable, *start, *given], check=True, env=environment)
        found = [json.loads(file.read_text()) for file in sorted(Path(folder).glob("*.json"))]
    spent = sum(one["cpu_seconds"] for one in found) / found[0]["images"]
    return found[0]["images_per_second"], 1000 * spent


def work(args: argparse.Namespace) -> None:
    from holdfast.data import ArraySplit, Dataset
    from holdfast.settings import TrainSettings, build
    from holdfast.train import train

    count = args.batches * args.batch_size
    images = torch.randint(0, 256, (count, 3, 32, 32), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))
    labels, groups = torch.arange(count) % 10, torch.full((count,), -1)
    data = Dataset("noise", tuple("0123456789"), ArraySplit(images, labels, groups))
    settings = {
        **{key: getattr(args, key) for key in ("device", "model", "batch_size", "ascent", "precision")},
        "epochs": EPOCHS,
        "eval_every": 0,
        "channels_last": args.device != "cpu",
    }
    train(build(TrainSettings, {**settings, "epochs": 1}), data=data)  # what is imported and chosen once
    began = time.process_time()
    run = train(build(TrainSettings, settings), data=data)
    rank = os.environ.get("RANK", "0")
    speed = max(record["images_per_second"] for record in run.history[1:])
    figures = {"images_per_second": speed, "cpu_seconds": time.process_time() - began, "images": count * EPOCHS}
    (args.worker / f"{rank}.json").write_text(json.dumps(figures))


if __name__ == "__main__":
    main()
