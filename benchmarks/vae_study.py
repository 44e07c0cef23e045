"""The VAE report, rerun and beaten: three seeds, its mistakes on and off. Tables and figures go to OUT.

    python benchmarks/vae_study.py --root DATA --out runs/vae-study --device cuda [--minutes 8] [--part 1/3]
    python benchmarks/vae_study.py --out runs/vae-study --collect [--keep FILE.json --page PAGE.md --made commit=...]

The same as 'holdfast detect study', for machines without what the command line needs. --keep writes all results without
pictures and single values into one file, --page puts their tables into a page, between its two marks.
"""

from __future__ import annotations

import argparse
import json
import sys
from dataclasses import replace
from pathlib import Path

import torch

from holdfast.comparisons.vae_study import QUICK, StudySettings, collect, study
from holdfast.detect.study import read_study, slim

MARKS = ("<!-- tables of the results -->\n", "<!-- end of the tables -->\n")


def _part(text: str) -> tuple[int, int]:
    number, _, parts = text.partition("/")
    return int(number), int(parts)


def keep(out: Path, path: Path, made: list[str]) -> None:
    """All results in one small file, after what made them: KEY=VALUE each."""
    about = dict(item.split("=", 1) for item in made)
    records = ",\n".join(json.dumps(slim(record)) for record in read_study(out))
    path.write_text(f'{json.dumps(about, indent=1)[:-2]},\n "records": [\n{records}\n]}}\n')


def fill(page: Path, tables: str) -> None:
    before, _, rest = page.read_text().partition(MARKS[0])
    _, _, after = rest.partition(MARKS[1])
    page.write_text(f"{before}{MARKS[0]}\n{tables}\n{MARKS[1]}{after}")


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
    parser.add_argument("--keep", type=Path, help="with --collect: the small file")
    parser.add_argument("--page", type=Path, help="with --collect: the page")
    parser.add_argument("--made", nargs="+", default=[], metavar="KEY=VALUE", help="with --keep: commit, hardware, ...")
    parser.add_argument("--quick", action="store_true")
    args = parser.parse_args()
    if args.collect:
        tables = collect(args.out, name=args.data)
        print(tables)
        if args.keep is not None:
            keep(args.out, args.keep, args.made)
        if args.page is not None:
            fill(args.page, tables)
        return
    whole = StudySettings(seeds=args.seeds, epochs=args.epochs, model=args.model, precision=args.precision)
    settings = replace(QUICK if args.quick else whole, device=args.device)
    note = {"note": lambda text: print(text, flush=True)}
    broken = study(args.data, args.out, settings, root=args.root, part=args.part, minutes=args.minutes, **note)
    sys.exit(1 if broken else 0)


if __name__ == "__main__":
    main()
