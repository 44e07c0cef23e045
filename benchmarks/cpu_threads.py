"""A small training on a CPU alone and beside a busy process: images per second, and the share that is left.

    python benchmarks/cpu_threads.py [--rounds 3] [--sides 16 28] [--out benchmarks/results/cpu_threads.json]

``holdfast train`` with the small convnet on 1,200 images of noise, as a command: with the threads that it chooses, with
one and with two. The busy process is a loop in Python. Settings take turns, and the median round counts. At least 0.4
of the speed alone has to be left where the network is small.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np

SETTINGS: dict[str, dict[str, str]] = {
    "as the command sets it": {},
    "one thread": {"OMP_NUM_THREADS": "1"},
    "two threads": {"OMP_NUM_THREADS": "2"},
}


def noise(side: int, place: str) -> str:
    """1,200 images of ten classes, as a file."""
    random, path = np.random.default_rng(0), f"{place}/{side}.npz"
    x, y = random.integers(0, 256, (1200, side, side), np.uint8), np.arange(1200) % 10
    np.savez(path, x_train=x, y_train=y, x_test=x[:100], y_test=y[:100])
    return path


def speed(data: str, environment: dict[str, str], epochs: int) -> float:
    """Images per second of the faster half of the epochs."""
    clean = {k: v for k, v in os.environ.items() if not k.startswith(("OMP_", "GOMP_"))}
    with tempfile.TemporaryDirectory() as place:
        words = [
            "train",
            "--data",
            data,
            "--epochs",
            str(epochs),
            "--eval-every",
            "0",
            "--checkpoint-every",
            "1000",
        ]
        words += ["--device", "cpu", "--quiet", "--out", f"{place}/run"]
        subprocess.run(
            [sys.executable, "-m", "holdfast", *words], check=True, env=clean | environment, stdout=subprocess.DEVNULL
        )
        lines = (Path(place) / "run" / "metrics.jsonl").read_text().splitlines()
    return statistics.median(json.loads(line)["images_per_second"] for line in lines[1:])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--epochs", type=int, default=8)
    parser.add_argument("--sides", type=int, nargs="+", default=[16, 28], help="of the images, in pixels")
    parser.add_argument("--out", type=Path)
    args = parser.parse_args()
    figures: dict[str, Any] = {}
    with tempfile.TemporaryDirectory() as place:
        for side in args.sides:
            data = noise(side, place)
            speeds: dict[str, dict[str, list[float]]] = {name: {"alone": [], "beside": []} for name in SETTINGS}
            for _ in range(args.rounds):
                for name, environment in SETTINGS.items():
                    speeds[name]["alone"].append(speed(data, environment, args.epochs))
                    busy = subprocess.Popen([sys.executable, "-c", "while True: pass"])
                    try:
                        speeds[name]["beside"].append(speed(data, environment, args.epochs))
                    finally:
                        busy.kill()
                        busy.wait()
            own = figures.setdefault(f"{side} pixels", {})
            for name, found in speeds.items():
                alone, beside = (statistics.median(found[key]) for key in ("alone", "beside"))
                own[name] = {"alone": alone, "beside": beside, "left": beside / alone}
                print(
                    f"{side:3} {name:24} alone {alone:7,.0f}   beside {beside:7,.0f}   left {beside / alone:.2f}",
                    flush=True,
                )
    if args.out:
        from record import write_result

        write_result(args.out, figures, gpu=False)


if __name__ == "__main__":
    main()
