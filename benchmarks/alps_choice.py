"""ALPS's open settings, chosen on a held-out tenth of CIFAR-10's training set; the test set is not looked at.

    python benchmarks/alps_choice.py --root DATA --out OUT [--epochs 30] [--part 0/3]
    python benchmarks/alps_choice.py --out OUT --table

The paper gives ranges: a mode in (0.75, 1) and a radius in (0, 0.5). PreActResNet-18 with the recipe's settings on a
schedule shortened to --epochs, with the drops of the rate at the same shares of it.
"""

from __future__ import annotations

import argparse
from functools import partial
from itertools import product
from pathlib import Path

import torch
from jobs import read_jobs, run_jobs

from holdfast.data import Dataset, load
from holdfast.train import fit

MODES, CONCENTRATIONS, RADII = (0.8, 0.9, 0.97), (10.0, 40.0), (0.1, 0.2, 0.4)


def train(data: Dataset, method: dict[str, object], args: argparse.Namespace, seed: int) -> dict[str, object]:
    result = fit(
        data,
        method=method,
        model=args.model,
        lr=0.1,
        weight_decay=1e-4,
        schedule="multistep",
        milestones=[args.epochs // 2, args.epochs * 3 // 4],
        epochs=args.epochs,
        batch_size=128,
        crop=4,
        flip=True,
        eval_every=0,
        precision=args.precision,
        channels_last=True,
        device=args.device,
        seed=seed,
        progress=False,
    )
    last = result.history[-1]
    return {"method": method, "seed": seed, "epochs": args.epochs, "held_out_error": 1 - last["val_accuracy"]}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--root")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--epochs", type=int, default=30)
    parser.add_argument("--seeds", type=int, nargs="*", default=[0])
    parser.add_argument("--model", default="cifar-preactresnet18")
    parser.add_argument("--precision", default="bf16")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--part", default="0/1")
    parser.add_argument("--table", action="store_true")
    args = parser.parse_args()
    if args.table:
        for record in sorted(read_jobs(args.out), key=lambda r: r["held_out_error"]):
            print(f"{100 * record['held_out_error']:6.2f} %  {record['method']}  seed {record['seed']}")
        return
    data = load("cifar10", root=args.root, val=0.1)
    methods: list[dict[str, object]] = [{"name": "erm"}, {"name": "mixup"}, {"name": "label-smoothing"}]
    methods += [
        {"name": "alps", "mode": mode, "concentration": concentration, "epsilon": radius}
        for mode, concentration, radius in product(MODES, CONCENTRATIONS, RADII)
    ]
    names = ["-".join(str(v) for v in method.values()) for method in methods]
    jobs = [
        (f"{name}-seed{seed}", partial(train, data, method, args, seed))
        for seed in args.seeds
        for name, method in zip(names, methods, strict=True)
    ]
    run_jobs(jobs, args.out, args.part)


if __name__ == "__main__":
    main()
