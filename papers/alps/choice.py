"""ALPS's open settings, chosen on a held-out tenth of CIFAR-10's training set; the test set is not used.

    python papers/alps/choice.py --root DATA --out OUT [--epochs 30] [--part 0/3]
    python papers/alps/choice.py --out OUT --table

The paper gives ranges: a mode in (0.75, 1) and a radius in (0, 0.5). PreActResNet-18 with the recipe's settings on a
schedule shortened to --epochs, with the drops of the rate at the same shares of it.
"""

from __future__ import annotations

import argparse
import sys
from functools import partial
from itertools import product
from pathlib import Path

from holdfast.data import Dataset, load

sys.path.insert(0, str(Path(__file__).parents[1]))  # what the papers share lies beside their folders
from sweeps import read_jobs, run_jobs, sweep_parser, train

MODES, CONCENTRATIONS, RADII = (0.8, 0.9, 0.97), (10.0, 40.0), (0.1, 0.2, 0.4)


def held_out(data: Dataset, method: dict[str, object], args: argparse.Namespace, seed: int) -> dict[str, object]:
    milestones = [args.epochs // 2, args.epochs * 3 // 4]
    last = train(data, method, args, seed, lr=0.1, schedule="multistep", milestones=milestones).history[-1]
    return {"method": method, "seed": seed, "epochs": args.epochs, "held_out_error": 1 - last["val_accuracy"]}


def main() -> None:
    args = sweep_parser(__doc__.splitlines()[0], model="cifar-preactresnet18", epochs=30).parse_args()
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
        (f"{name}-seed{seed}", partial(held_out, data, method, args, seed))
        for seed in args.seeds
        for name, method in zip(names, methods, strict=True)
    ]
    run_jobs(jobs, args.out, args.part)


if __name__ == "__main__":
    main()
