"""The VAE report, rerun and beaten: three seeds, its mistakes on and off. Tables and figures go to OUT.

    python benchmarks/vae_study.py --root DATA --out runs/vae-study --device cuda [--minutes 8] [--part 1/3]
    python benchmarks/vae_study.py --out runs/vae-study --collect

The same as 'holdfast detect study', for machines without what the command line needs.
"""

from __future__ import annotations

import argparse
import sys
from dataclasses import replace
from pathlib import Path

import torch

from holdfast.experiment.vae_study import QUICK, StudySettings, collect, study


def _part(text: str) -> tuple[int, int]:
    number, _, parts = text.partition("/")
    return int(number), int(parts)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", default="fashion-anomalies")
    parser.add_argument("--root", type=Path)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--precision", default="bf16", choices=("fp32", "tf32", "bf16"))
    parser.add_argument("--model", default="cifar-resnet18")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--epochs", type=int, default=100)
    parser.add_argument("--minutes", type=float, help="start nothing after so long")
    parser.add_argument(
        "--part", type=_part, default=(1, 1), metavar="I/N", help="take every N-th unit, the I-th first"
    )
    parser.add_argument("--collect", action="store_true", help="only make tables and figures of what is there")
    parser.add_argument("--quick", action="store_true")
    args = parser.parse_args()
    if args.collect:
        print(collect(args.out, name=args.data))
        return
    whole = StudySettings(seeds=args.seeds, epochs=args.epochs, model=args.model, precision=args.precision)
    settings = replace(QUICK if args.quick else whole, device=args.device)
    note = {"note": lambda text: print(text, flush=True)}
    broken = study(args.data, args.out, settings, root=args.root, part=args.part, minutes=args.minutes, **note)
    sys.exit(1 if broken else 0)


if __name__ == "__main__":
    main()
