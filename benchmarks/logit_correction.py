"""Logit Correction beside ERM and LfF on data with a shortcut: accuracy by bias over seeds, from the same settings.

    python benchmarks/logit_correction.py [--sets coloured-digits] [--seeds 5] [--jobs 1] [--out FILE]
    python benchmarks/logit_correction.py --sets corrupted-cifar10 --root DATA --device cuda --epochs 30 --seeds 1 ...

coloured-digits: the embedded digits at 1 and 5 % bias-conflicting, the small network. corrupted-cifar10: DFA's kinds at
1 %, ResNet-18; DATA/cifar10.npz. Every method has the same optimiser, rate and length, none tuned for it. The test sets
have every pair of class and attribute equally often. Intervals are of means over seeds (Student's t), gains are paired
by seed.
"""

from __future__ import annotations

import argparse
import multiprocessing
import time
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

import torch
from record import write_result

from holdfast.data import Dataset, load
from holdfast.data.readers.corrupted_cifar10 import corrupted_cifar10
from holdfast.metrics import mean_interval
from holdfast.train import fit

METHODS = ("erm", "lff", "logit-correction")
CONFLICTS = {"coloured-digits": (0.01, 0.05), "corrupted-cifar10": (0.01,)}
SETTINGS: dict[str, dict[str, Any]] = {
    "coloured-digits": {"optimizer": "adamw", "lr": 3e-3, "batch_size": 64, "epochs": 30},
    "corrupted-cifar10": {
        "model": "torchvision:resnet18", "optimizer": "adam", "lr": 1e-3, "weight_decay": 1e-4, "batch_size": 128,
        "epochs": 200, "crop": 4, "flip": True, "precision": "bf16", "channels_last": True,
    },
}  # fmt: skip


def data_of(name: str, conflict: float, seed: int, args: argparse.Namespace) -> Dataset:
    if name == "coloured-digits":
        return load(name, conflict=conflict, data_seed=seed)
    return corrupted_cifar10(load(f"{args.root}/cifar10.npz"), kind="dfa", conflict=conflict, device=args.device)


def one(name: str, conflict: float, method: str, seed: int, args: argparse.Namespace) -> dict[str, float]:
    torch.set_num_threads(args.threads)
    data = data_of(name, conflict, seed, args)
    settings = SETTINGS[name] | ({"epochs": args.epochs} if args.epochs else {})
    began = time.perf_counter()
    run = fit(data, method=method, seed=seed, device=args.device, progress=False, eval_every=0, **settings)
    seconds = time.perf_counter() - began
    assert data.test is not None
    test, device, answers = data.test, next(run.model.parameters()).device, []
    run.model.eval()
    with torch.no_grad():
        for index in torch.arange(len(test)).split(500):
            answers.append(run.model(test.read(index).to(device).float() / 255).argmax(1).cpu())
    right = (torch.cat(answers) == test.labels).double()
    aligned = test.groups == test.labels
    return {
        "accuracy": float(right.mean()),
        "bias_aligned_accuracy": float(right[aligned].mean()),
        "bias_conflicting_accuracy": float(right[~aligned].mean()),
        "seconds": seconds,
    }


def interval(values: list[float]) -> dict[str, Any]:
    if len(values) < 2:
        return {"mean": values[0], "low": None, "high": None, "seeds": values}
    mean, low, high = mean_interval(torch.tensor(values, dtype=torch.float64))
    return {"mean": mean, "low": low, "high": high, "seeds": values}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sets", nargs="+", default=["coloured-digits"], choices=sorted(SETTINGS))
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--epochs", type=int, help="instead of the set's own")
    parser.add_argument("--root", type=Path, help="where cifar10.npz lies")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--jobs", type=int, default=1, help="trainings side by side")
    parser.add_argument("--threads", type=int, default=2, help="of each")
    parser.add_argument("--out", type=Path)
    args = parser.parse_args()
    kinds = [(name, conflict) for name in args.sets for conflict in CONFLICTS[name]]
    units = [(*kind, method, seed) for kind in kinds for seed in range(args.seeds) for method in METHODS]
    figures: dict[str, Any] = {}
    with ProcessPoolExecutor(args.jobs, mp_context=multiprocessing.get_context("spawn")) as pool:
        made = {unit: pool.submit(one, *unit, args) for unit in units}
        for name, conflict in kinds:
            table: dict[str, Any] = {}
            own = {m: [made[name, conflict, m, seed].result() for seed in range(args.seeds)] for m in METHODS}
            for method, rows in own.items():
                table[method] = {key: interval([row[key] for row in rows]) for key in rows[0]}
                for other in METHODS[: METHODS.index(method)]:
                    pairs = zip(rows, own[other], strict=True)
                    gains = [a["bias_conflicting_accuracy"] - b["bias_conflicting_accuracy"] for a, b in pairs]
                    table[method][f"gain over {other}"] = interval(gains)
                found = table[method]["bias_conflicting_accuracy"]
                print(f"{name} {conflict:.0%} {method}: conflicting {found['mean']:.1%} {found['seeds']}", flush=True)
            figures[f"{name}, {conflict:.0%}"] = table
    if args.out:
        write_result(args.out, figures, gpu=args.device != "cpu")


if __name__ == "__main__":
    main()
