"""Two verdicts on the same samples: their difference with an interval, and McNemar's test."""

from __future__ import annotations

from dataclasses import dataclass
from math import comb, sqrt
from statistics import NormalDist

from torch import Tensor


@dataclass(frozen=True)
class Paired:
    """By how much one share of hits leads another on the same n samples.

    low, high: interval of the lead at ``level``. p: of McNemar's exact test that neither is better.
    """

    lead: float
    low: float
    high: float
    p: float
    n: int
    level: float


def compare(first: Tensor, second: Tensor, *, level: float) -> Paired:
    """How far ``second`` (N,) bool leads ``first`` (N,) bool.

    The interval is Bonett and Price's (2012): Wald's with one pseudo-observation in each discordant cell, which holds
    its level also for few discordant pairs. The test is exact: discordant pairs fall either way with probability 1/2.
    """
    gained, lost, n = int((second & ~first).sum()), int((first & ~second).sum()), len(first)
    plus, minus = (gained + 1) / (n + 2), (lost + 1) / (n + 2)
    half = NormalDist().inv_cdf(0.5 + level / 2) * sqrt((plus + minus - (plus - minus) ** 2) / (n + 2))
    centre = plus - minus
    low, high = max(-1.0, centre - half), min(1.0, centre + half)
    return Paired((gained - lost) / n if n else 0.0, low, high, mcnemar(gained, lost), n, level)


def mcnemar(gained: int, lost: int) -> float:
    """Two-sided exact p-value from the discordant pairs alone.

    >>> mcnemar(0, 0), mcnemar(5, 0)
    (1.0, 0.0625)
    """
    discordant, fewer = gained + lost, min(gained, lost)
    if discordant == 0:
        return 1.0
    return min(1.0, 2 * sum(comb(discordant, k) for k in range(fewer + 1)) / 2**discordant)
