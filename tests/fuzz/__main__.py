"""``python -m tests.fuzz KIND ... --cases N``: many cases of each kind; exit code 1 where one failed."""

from __future__ import annotations

import argparse
import sys
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from pathlib import Path

from tests.fuzz.harness import KINDS, Tally, run

AT_ONCE = 500
"""Cases that one of several processes takes at a time."""


def run_parts(pool: ProcessPoolExecutor, kind: str, cases: int, seed: int, first: int) -> Tally:
    """All cases of a kind, in parts, by several processes; its seconds are the sum of theirs."""
    starts = range(first, first + cases, AT_ONCE)
    parts = [pool.submit(run, kind, cases=min(AT_ONCE, first + cases - n), seed=seed, first=n) for n in starts]
    whole = Tally(kind)
    for start, part in zip(starts, parts, strict=True):
        try:
            found = part.result()
        except BrokenProcessPool as error:
            raise SystemExit(f"{kind}: a process died, at case {start} or later; find it with --jobs 1") from error
        whole.accepted += found.accepted
        whole.refused += found.refused
        whole.seconds += found.seconds
        whole.failures |= found.failures
    return whole


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz", description=__doc__)
    parser.add_argument("kinds", nargs="*", default=KINDS, metavar="KIND", help=f"{', '.join(KINDS)} (default: all)")
    parser.add_argument("--cases", type=int, default=10_000, help="of each kind (default: 10000)")
    parser.add_argument("--seconds", type=float, default=float("inf"), help="for each kind (default: no limit)")
    parser.add_argument("--seed", type=int, default=0, help="other cases (default: 0)")
    parser.add_argument("--first", type=int, default=0, help="number of the first case; with --cases 1, repeats one")
    parser.add_argument("--jobs", type=int, default=1, help="processes at the same time (default: 1)")
    parser.add_argument("--out", type=Path, help="JSON file for the counts")
    given = parser.parse_args()
    if given.jobs > 1 and given.seconds != float("inf"):
        parser.error("--seconds is for one process, not for --jobs")
    failed, rows = False, []
    for kind in given.kinds:
        if given.jobs > 1:
            with ProcessPoolExecutor(given.jobs) as pool:
                found = run_parts(pool, kind, given.cases, given.seed, given.first)
        else:
            found = run(
                kind,
                cases=given.cases,
                seconds=given.seconds,
                seed=given.seed,
                first=given.first,
                tell=lambda text: print(f"\r{text}", end="", file=sys.stderr, flush=True),
            )
            print(file=sys.stderr)
        rows.append(
            {
                "kind": kind,
                "first": given.first,
                "cases": found.cases,
                "read": found.accepted,
                "refused": found.refused,
                "failures": len(found.failures),
                "seconds": round(found.seconds, 1),
            }
        )
        for number, text in found.failures.items():
            print(f"--- {kind} {number}\n{text}")
        print(found, flush=True)
        failed = failed or bool(found.failures)
        if given.out is not None:  # after every kind: what is there is kept if the time runs out
            from benchmarks.record import write_result

            write_result(given.out, {"rows": rows}, gpu=False)
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
