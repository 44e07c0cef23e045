"""The VAE report, rerun and beaten: three seeds, its mistakes on and off. Tables and figures go to OUT.

    python papers/vae-report/run.py --root DATA --out runs/vae-study --device cuda [--minutes 8] [--part 1/3]
    python papers/vae-report/run.py --root DATA --out runs/one --job ours --seed 10    # one row of a table, one seed
    python papers/vae-report/run.py --out runs/vae-study --collect [--keep FILE.json --page PAGE.md --made commit=...]

Every unit, a job with one seed, leaves one JSON file in OUT: the same command continues a study that was stopped.
--keep adds the results that FILE.json does not have yet, without images and single values; --page puts the tables of
all that FILE.json has into a page, between its two marks.
"""

from __future__ import annotations

import argparse
import json
import signal
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from vae_report import study
from vae_report.bench import QUICK, StudySettings
from vae_report.judging import Record
from vae_report.study import kept, read_study
from vae_report.tables import markdown

from holdfast.errors import HoldfastError, Interrupted
from holdfast.files import write_atomic

MARKS = ("<!-- tables of the results -->\n", "<!-- end of the tables -->\n")


def _part(text: str) -> tuple[int, int]:
    number, slash, parts = text.partition("/")
    if not (number.isdecimal() and slash and parts.isdecimal()):
        raise argparse.ArgumentTypeError(f"must be I/N, such as 1/3, got {text!r}")
    return int(number), int(parts)


def keep(out: Path, path: Path, made: list[str]) -> list[Record]:
    """Add results to a small file, each with what made it (KEY=VALUE); a new file says it once. Returns all of it."""
    about: dict[str, Any] = dict(item.split("=", 1) for item in made)
    before = json.loads(path.read_bytes()) if path.exists() else {**about, "records": []}
    records = kept(before.pop("records"), read_study(out), made=about if path.exists() else {})
    lines = ",\n".join(json.dumps(record) for record in records)
    head = json.dumps(before, indent=1)[:-2] + "," if before else "{"
    write_atomic(path, f'{head}\n "records": [\n{lines}\n]}}\n'.encode())
    return records


def fill(page: Path, tables: str) -> None:
    before, _, rest = page.read_text().partition(MARKS[0])
    _, _, after = rest.partition(MARKS[1])
    page.write_text(f"{before}{MARKS[0]}\n{tables}\n{MARKS[1]}{after}")


def main(argv: Sequence[str] | None = None) -> int:
    """Run the units that have no result yet, then make study.md and study.html.

    Exit codes are those of holdfast: 0 done, 2 bad input, 3 a unit broke, 130 or 143 interrupted.
    """
    try:
        return _run(argv)
    except KeyboardInterrupt as stopped:
        print("interrupted; the same command continues the study", file=sys.stderr)
        return 128 + (stopped.signum if isinstance(stopped, Interrupted) else signal.SIGINT)
    except (HoldfastError, OSError) as error:
        cause = error if isinstance(error, HoldfastError) else f"cannot use {error.filename}: {error.strerror}"
        print(f"error: {cause}", file=sys.stderr)
        return 2


def _run(argv: Sequence[str] | None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", default="fashion-anomalies", help="or digits, or a file with such a set")
    parser.add_argument("--root", type=Path, help="where built-in sets lie (default: $HOLDFAST_ROOT, or ./data)")
    parser.add_argument("--out", type=Path, required=True, help="the folder for results, study.md and study.html")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--precision", choices=("fp32", "tf32", "bf16"), help="default: bf16; quick: fp32")
    parser.add_argument("--model", help="of encoder and classifiers (default: cifar-resnet18; quick: convnet)")
    parser.add_argument("--job", nargs="+", default=[], metavar="NAME", help="only these jobs (default: all)")
    parser.add_argument("--seeds", type=int, help="repetitions of everything (default: 3; quick: 1)")
    parser.add_argument("--seed", type=int, help="of the first repetition; without --seeds the only one (default: 10)")
    parser.add_argument("--epochs", type=int, help="of the report's VAE (default: 100; quick: 5)")
    parser.add_argument("--minutes", type=float, help="start no unit after this time")
    parser.add_argument(
        "--part", type=_part, default=(1, 1), metavar="I/N", help="take every N-th unit, so that N processes can share"
    )
    parser.add_argument("--quick", action="store_true", help="small networks and few epochs: digits take a minute")
    parser.add_argument("--collect", action="store_true", help="train nothing; only make tables and figures")
    parser.add_argument("--keep", type=Path, help="with --collect: the small file")
    parser.add_argument("--page", type=Path, help="with --collect: the page")
    parser.add_argument("--made", nargs="+", default=[], metavar="KEY=VALUE", help="with --keep: commit, hardware, ...")
    args = parser.parse_args(argv)
    broken = 0
    if not args.collect:
        given = {name: getattr(args, name) for name in ("seeds", "epochs", "model", "precision")}
        if args.seed is not None:
            given |= {"first_seed": args.seed, "seeds": args.seeds or 1}
        chosen = {name: value for name, value in given.items() if value is not None}
        settings = replace(QUICK if args.quick else StudySettings(), device=args.device, **chosen)
        broken = study.run_on(
            args.data,
            args.out,
            settings,
            root=args.root,
            jobs=args.job,
            part=args.part,
            minutes=args.minutes,
            note=lambda text: print(text, flush=True),
        )
    tables = study.collect(args.out, name=args.data)
    print(tables)
    if args.keep is not None:
        tables = markdown(keep(args.out, args.keep, args.made))
    if args.page is not None:
        fill(args.page, tables)
    return 3 if broken else 0


if __name__ == "__main__":
    sys.exit(main())
