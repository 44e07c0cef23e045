"""Real CIFAR-10 from the device's memory and from a folder of PNGs: the same training, the same accuracy.

    python benchmarks/gpu_loaders.py --root DATA --folder PNGS [--epochs 10] [--seeds 2] [--out FILE]

DATA holds cifar10.npz; PNGS is the same images as <split>/<class>/<id>.png.
"""

from __future__ import annotations

import argparse
import statistics
from pathlib import Path

from record import write_result

from holdfast.data import load
from holdfast.train import fit

COMMON = {
    "model": "cifar-resnet18",
    "optimizer": "sgd",
    "batch_size": 128,
    "lr": 0.1,
    "crop": 4,
    "flip": True,
    "precision": "bf16",
    "channels_last": True,
    "device": "cuda",
    "eval_every": 0,
    "workers": 16,
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--root", required=True)
    parser.add_argument("--folder", required=True)
    parser.add_argument("--epochs", type=int, default=10)
    parser.add_argument("--seeds", type=int, default=2)
    parser.add_argument("--commit")
    parser.add_argument("--out", type=Path)
    args = parser.parse_args()
    figures = {}
    for name, data in (("resident", load("cifar10", root=args.root)), ("folder", load(args.folder))):
        runs = [fit(data, epochs=args.epochs, seed=seed, **COMMON) for seed in range(args.seeds)]
        accuracy = [run.history[-1]["test_accuracy"] for run in runs]
        seconds = statistics.median(record["seconds"] for run in runs for record in run.history[1:])
        figures[name] = {"test_accuracy": accuracy, "epoch_s": seconds}
        print(f"{name:10} accuracy {accuracy}   epoch {seconds:.2f} s", flush=True)
    if args.out:
        write_result(args.out, figures, commit=args.commit)


if __name__ == "__main__":
    main()
