"""Runs the cases of a kind and judges how each of them ends.

A case is made from its kind, a seed and its number alone, so that any failure can be repeated by its number.
"""

from __future__ import annotations

import signal
import tempfile
import time
import traceback
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from importlib import import_module
from pathlib import Path
from random import Random
from types import FrameType

from holdfast.errors import HoldfastError

KINDS = ("config", "tables", "npz", "shards", "predictions", "findings")
LONGEST = 20.0
"""Seconds after which a case hangs: far longer than one takes, as a busy machine may stand still for ten."""
MOST_LETTERS = 2000
"""A message longer than this is not one that anybody reads."""

Fuzz = Callable[[Random, Path], None]
"""Writes one case into a folder of its kind and has the program read it."""


class Hung(BaseException):
    """Not an Exception: nothing that is tested may catch it."""


@dataclass
class Tally:
    """How cases ended. failures: what went wrong, by the number of the case."""

    kind: str
    accepted: int = 0
    refused: int = 0
    seconds: float = 0.0
    failures: dict[int, str] = field(default_factory=dict)

    @property
    def cases(self) -> int:
        return self.accepted + self.refused + len(self.failures)

    def __str__(self) -> str:
        return (
            f"{self.kind}: {self.cases} cases in {self.seconds:.0f} s, {self.accepted} read, {self.refused} refused "
            f"clearly, {len(self.failures)} failures"
        )


def run(
    kind: str,
    *,
    cases: int,
    seconds: float = float("inf"),
    seed: int = 0,
    first: int = 0,
    most_failures: int = 20,
    tell: Callable[[str], None] | None = None,
) -> Tally:
    """Cases from ``first`` on, until there are enough, time is up, or too many have failed."""
    module = import_module(f"tests.fuzz.{kind}_cases")
    fuzz: Fuzz = module.fuzz
    tally, start = Tally(kind), time.monotonic()
    with tempfile.TemporaryDirectory(prefix=f"fuzz-{kind}-") as folder:
        for number in range(first, first + cases):
            failure = _judge(fuzz, Random(f"{kind}/{seed}/{number}"), Path(folder), tally)
            tally.seconds = time.monotonic() - start
            if failure:
                tally.failures[number] = failure
            if tell is not None and (number + 1 - first) % 1000 == 0:
                tell(str(tally))
            if tally.seconds > seconds or len(tally.failures) >= most_failures:
                break
    return tally


def _judge(fuzz: Fuzz, random: Random, folder: Path, tally: Tally) -> str:
    """What is wrong with the way a case ended; nothing where it was read or clearly refused."""
    try:
        with _limited(LONGEST), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            fuzz(random, folder)
    except HoldfastError as error:
        text = str(error)
        if not text or "\n" in text or len(text) > MOST_LETTERS:
            return f"not a clear message ({len(text)} letters): {text[:300]!r}"
        tally.refused += 1
    except (Exception, Hung):
        return traceback.format_exc(limit=-6)
    else:
        tally.accepted += 1
    return ""


@contextmanager
def _limited(seconds: float) -> Iterator[None]:
    def end(_signum: int, _frame: FrameType | None) -> None:
        raise Hung(f"not done after {seconds:g} s")

    before = signal.signal(signal.SIGALRM, end)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
