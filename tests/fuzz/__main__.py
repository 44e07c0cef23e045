"""``python -m tests.fuzz KIND ... --cases N``: many cases of each kind; exit code 1 where one failed."""

from __future__ import annotations

import argparse
import sys

from tests.fuzz.harness import KINDS, run


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz", description=__doc__)
    parser.add_argument("kinds", nargs="*", default=KINDS, metavar="KIND", help=f"any of {', '.join(KINDS)}; or all")
    parser.add_argument("--cases", type=int, default=10_000, help="of each kind (default: 10000)")
    parser.add_argument("--seconds", type=float, default=float("inf"), help="for each kind (default: no limit)")
    parser.add_argument("--seed", type=int, default=0, help="other cases (default: 0)")
    parser.add_argument("--first", type=int, default=0, help="number of the first case; with --cases 1, repeats one")
    given = parser.parse_args()
    failed = False
    for kind in given.kinds:
        found = run(
            kind,
            cases=given.cases,
            seconds=given.seconds,
            seed=given.seed,
            first=given.first,
            tell=lambda text: print(f"\r{text}", end="", file=sys.stderr, flush=True),
        )
        print(file=sys.stderr)
        for number, text in found.failures.items():
            print(f"--- {kind} {number}\n{text}")
        print(found, flush=True)
        failed = failed or bool(found.failures)
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
