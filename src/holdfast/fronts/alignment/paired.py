"""Two verdicts on the same samples: their difference with an interval, and McNemar's test."""

from __future__ import annotations

from dataclasses import dataclass
from math import log, sqrt
from statistics import NormalDist

import torch
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

    >>> mcnemar(0, 0), round(mcnemar(5, 0), 6)
    (1.0, 0.0625)
    """
    pairs = torch.tensor(float(gained + lost), dtype=torch.float64)
    fewer = torch.arange(min(gained, lost) + 1, dtype=torch.float64)
    log_binomial = torch.lgamma(pairs + 1) - torch.lgamma(fewer + 1) - torch.lgamma(pairs - fewer + 1)
    return min(1.0, 2 * float((log_binomial - pairs * log(2)).logsumexp(0).exp()))
