"""A small training on a CPU alone and beside a busy process: images per second, and the share that is left.

    python benchmarks/cpu_threads.py [--rounds 3] [--out benchmarks/results/cpu_threads.json]

``holdfast train`` with the small convnet on the embedded digits, as a command: with the threads that torch takes, whose
waiting is set by the command; the same with OpenMP's own waiting, as before; and with one thread. The busy process is a
loop in Python. Settings take turns, and the median round counts. At least 0.4 of the speed alone has to be left.
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

SETTINGS: dict[str, dict[str, str]] = {
    "as the command sets it": {},
    "waiting as OpenMP does": {"OMP_WAIT_POLICY": "ACTIVE"},
    "one thread": {"OMP_NUM_THREADS": "1"},
}


def speed(environment: dict[str, str], epochs: int) -> float:
    """Images per second of the faster half of the epochs."""
    clean = {k: v for k, v in os.environ.items() if not k.startswith(("OMP_", "GOMP_"))}
    with tempfile.TemporaryDirectory() as place:
        words = [
            "train",
            "--data",
            "digits",
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
    parser.add_argument("--epochs", type=int, default=12)
    parser.add_argument("--out", type=Path)
    args = parser.parse_args()
    speeds: dict[str, dict[str, list[float]]] = {name: {"alone": [], "beside": []} for name in SETTINGS}
    for _ in range(args.rounds):
        for name, environment in SETTINGS.items():
            speeds[name]["alone"].append(speed(environment, args.epochs))
            busy = subprocess.Popen([sys.executable, "-c", "while True: pass"])
            try:
                speeds[name]["beside"].append(speed(environment, args.epochs))
            finally:
                busy.kill()
                busy.wait()
    figures: dict[str, Any] = {}
    for name, found in speeds.items():
        alone, beside = (statistics.median(found[key]) for key in ("alone", "beside"))
        figures[name] = {"alone": alone, "beside": beside, "left": beside / alone}
        print(f"{name:24} alone {alone:9,.0f} images/s   beside {beside:9,.0f}   left {beside / alone:.2f}", flush=True)
    if args.out:
        from record import write_result

        write_result(args.out, figures, gpu=False)


if __name__ == "__main__":
    main()
