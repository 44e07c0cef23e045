"""Whether a difference is more than chance."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import NormalDist

import torch
from torch import Tensor

from holdfast.metrics.intervals import bounded_mean


@dataclass(frozen=True, slots=True)
class McNemar:
    """only_a, only_b: samples that one of two models alone gets right. p: two-sided and exact."""

    only_a: int
    only_b: int
    p: float


def mcnemar(a: Tensor, b: Tensor) -> McNemar:
    """Whether two models are right equally often on the same samples, (N,) flags each: the exact binomial form.

    >>> mcnemar(torch.tensor([True] * 6), torch.tensor([False] * 6))
    McNemar(only_a=6, only_b=0, p=0.03125)
    """
    if a.shape != b.shape:
        raise ValueError(f"both need the same samples, got {tuple(a.shape)} and {tuple(b.shape)}")
    only_a, only_b = int((a & ~b).sum()), int((b & ~a).sum())
    n = only_a + only_b
    k = torch.arange(min(only_a, only_b) + 1, dtype=torch.float64)
    tail = (_log_choose(torch.tensor(n, dtype=torch.float64), k) - n * math.log(2)).exp().sum()
    return McNemar(only_a, only_b, min(1.0, float(f"{2 * float(tail):.12g}")))  # 0.03125, not 0.031250000000000014


@dataclass(frozen=True, slots=True)
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


def paired_difference(a: Tensor, b: Tensor, *, level: float = 0.95) -> Paired:
    """How far a leads b, (N,) flags each on the same samples.

    The interval is Bonett and Price's (2012): Wald's with one pseudo-observation in each discordant cell, which holds
    its level also for few discordant pairs.
    """
    p, n = mcnemar(a, b).p, len(a)
    if n == 0:
        return Paired(0.0, -1.0, 1.0, p, 0, level)
    z = NormalDist().inv_cdf(0.5 + level / 2)
    found = bounded_mean(a.double() - b.double(), (-1.0, 1.0), extra=1, z=z)
    return Paired(found.value, found.low, found.high, p, n, level)


def fisher_p(wrong_in: int, n_in: int, wrong_out: int, n_out: int) -> float:
    """Fisher's exact one-sided p: as many errors inside a part or more, were the part picked without regard to them."""
    total, wrong = n_in + n_out, wrong_in + wrong_out
    k = torch.arange(wrong_in, min(n_in, wrong) + 1, dtype=torch.float64)
    n, m, drawn = (torch.tensor(v, dtype=torch.float64) for v in (total, wrong, n_in))
    chances = _log_choose(m, k) + _log_choose(n - m, drawn - k) - _log_choose(n, drawn)
    possible = drawn - k <= n - m
    return min(1.0, float(chances[possible].exp().sum()))


def _log_choose(n: Tensor, k: Tensor) -> Tensor:
    return torch.lgamma(n + 1) - torch.lgamma(k + 1) - torch.lgamma(n - k + 1)


def holm(p: Sequence[float]) -> list[float]:
    """p-values adjusted so that all those under a level together err at most at that level (family-wise).

    >>> holm([0.01, 0.04, 0.03])
    [0.03, 0.06, 0.06]
    """
    order = sorted(range(len(p)), key=lambda i: p[i])
    adjusted, so_far = [0.0] * len(p), 0.0
    for rank, i in enumerate(order):
        so_far = max(so_far, min(1.0, (len(p) - rank) * p[i]))
        adjusted[i] = so_far
    return adjusted


def benjamini_hochberg(p: Sequence[float]) -> list[float]:
    """p-values adjusted so that at most a level's share of those under it are false, on average.

    >>> benjamini_hochberg([0.01, 0.04, 0.03])
    [0.03, 0.04, 0.04]
    """
    order = sorted(range(len(p)), key=lambda i: -p[i])
    adjusted, so_far = [0.0] * len(p), 1.0
    for rank, i in enumerate(order):
        so_far = min(so_far, p[i] * len(p) / (len(p) - rank))
        adjusted[i] = so_far
    return adjusted
