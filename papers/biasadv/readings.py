"""Which reading of BiasAdv's perturbation helps: a sweep on a short schedule of Corrupted CIFAR-10.

    python papers/biasadv/readings.py --root DATA --out OUT [--epochs 20] [--conflict 0.05] [--part 0/4]

The paper gives the size of the perturbation but neither its norm, nor its space, nor BatchNorm's part in the attack.
Each reading is trained once per seed with the paper's other settings (Adam 1e-3, batch 128, the rate halved five times
over the training) and leaves one JSON file in OUT, so a sweep that was stopped continues; --part i/n does every n-th
job, for several processes on one GPU. --table prints what is there.
"""

from __future__ import annotations

import argparse
import statistics
import sys
from functools import partial
from pathlib import Path

import torch

from holdfast import audit
from holdfast.data import Dataset, load
from holdfast.data.readers.corrupted_cifar10 import corrupted_cifar10

sys.path.insert(0, str(Path(__file__).parents[1]))  # what the papers share lies beside their folders
from sweeps import read_jobs, run_jobs, sweep_parser, train

PIXEL = 1 / 255
MAIN_TEXT: dict[str, object] = {"lam": 1.0, "radius": 0.7, "steps": 5, "beta": 1.5}
"""The constants of the paper's main text for Corrupted CIFAR-10; the supplement's are others."""
READINGS: dict[str, dict[str, object]] = {
    "erm": {"name": "erm"},
    "lff": {"name": "lff"},
    "lff raw": {"name": "lff", "difficulty": "raw"},
    **{f"l2 {r:g}": {"radius": r} for r in (0.25, 0.5, 1.0, 2.0, 5.0)},
    **{f"linf {k}/255": {"norm": "linf", "radius": k * PIXEL} for k in (2, 4, 8, 16)},
    **{f"linf normalised {r:g}": {"norm": "linf", "space": "normalised", "radius": r} for r in (0.1, 0.3, 0.5)},
    "l2 1, batch statistics": {"radius": 1.0, "statistics": "batch"},
    "linf 8/255, batch statistics": {"norm": "linf", "radius": 8 * PIXEL, "statistics": "batch"},
    "l2 0.5, clean running statistics": {"running": "clean"},
    "l2 1, clean running statistics": {"radius": 1.0, "running": "clean"},
    "l2 2, clean running statistics": {"radius": 2.0, "running": "clean"},
    "linf 8/255, clean running statistics": {"norm": "linf", "radius": 8 * PIXEL, "running": "clean"},
    "l2 1, lambda 0": {"radius": 1.0, "lam": 0.0},
    "l2 1, lambda 1": {"radius": 1.0, "lam": 1.0},
    "linf 8/255, lambda 0": {"norm": "linf", "radius": 8 * PIXEL, "lam": 0.0},
    "linf 8/255, lambda 1": {"norm": "linf", "radius": 8 * PIXEL, "lam": 1.0},
    "l2 1, beta 0.5": {"radius": 1.0, "beta": 0.5},
    "l2 1, raw": {"radius": 1.0, "difficulty": "raw"},
    "linf 8/255, raw": {"norm": "linf", "radius": 8 * PIXEL, "difficulty": "raw"},
    **{
        f"{base} {name}": {"name": f"{base}+biasadv", **MAIN_TEXT, **own}
        for base in ("erm", "jtt", "lff")
        for name, own in (
            ("main text, shared norms", {}),
            ("main text, auxiliary norms", {"batch_norm": "auxiliary"}),
            ("noise, auxiliary norms", {"batch_norm": "auxiliary", "perturbation": "noise"}),
            ("advprop, auxiliary norms", {"batch_norm": "auxiliary", "perturbation": "model"}),
        )
    },
    "jtt": {"name": "jtt"},
}


def read(data: Dataset, reading: str, seed: int, args: argparse.Namespace) -> dict[str, object]:
    values = READINGS[reading]
    method = values if "name" in values else {"name": "lff+biasadv", "lam": 0.5, "beta": 1.0, "steps": 5, **values}
    halved = {"schedule": "step", "step_size": max(1, args.epochs // 5), "gamma": 0.5}
    result = train(data, method, args, seed, optimizer="adam", lr=1e-3, **halved)
    found = audit(result.model, data, checks=["groups"], device=args.device)
    names = {
        "average_accuracy": "average",
        "bias_aligned_accuracy": "aligned",
        "bias_conflicting_accuracy": "conflicting",
    }
    wanted = {names[f.name]: f.value for f in found if f.name in names}
    seconds = sum(record["seconds"] for record in result.history)
    return {
        "reading": reading,
        "seed": seed,
        "epochs": args.epochs,
        "conflict": args.conflict,
        "seconds": seconds,
        **wanted,
    }


def table(folder: Path) -> str:
    records = read_jobs(folder)
    lines = []
    for reading in READINGS:
        own = [r for r in records if r["reading"] == reading]
        if own:
            cells = []
            for side in ("average", "aligned", "conflicting"):
                values = [100 * r[side] for r in own]
                spread = f" ± {statistics.stdev(values):.1f}" if len(values) > 1 else ""
                cells.append(f"{statistics.fmean(values):5.1f}{spread}")
            lines.append(f"{reading:32} {'   '.join(cells)}   {len(own)} seeds   {own[0]['seconds']:.0f} s")
    return "\n".join(lines)


def main() -> None:
    parser = sweep_parser(__doc__.splitlines()[0], model="torchvision:resnet18", epochs=20)
    parser.add_argument("--kind", default="dfa")
    parser.add_argument("--conflict", type=float, default=0.05)
    parser.add_argument("--only", nargs="*", default=list(READINGS))
    parser.add_argument("--images", type=int, help="only so many training images")
    args = parser.parse_args()
    if args.table:
        print(table(args.out))
        return
    source = load("cifar10", root=args.root)
    if args.images:
        some = torch.arange(args.images)
        source = Dataset(source.name, source.classes, source.train.subset(some), None, source.test.subset(some))
    data = corrupted_cifar10(source, kind=args.kind, conflict=args.conflict, device=args.device)
    jobs = [
        (f"{reading}-{args.conflict:g}-{args.epochs}-seed{seed}", partial(read, data, reading, seed, args))
        for seed in args.seeds
        for reading in args.only
    ]
    run_jobs(jobs, args.out, args.part)


if __name__ == "__main__":
    main()
