"""Whether a difference is more than chance: McNemar's and other exact tests, and corrections for many of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from scipy.special import ndtri  # type: ignore[import-untyped]
from torch import Tensor

from holdfast.errors import require
from holdfast.metrics.intervals import around, bounded_mean
from holdfast.metrics.metric_inputs import check_flags


@dataclass(frozen=True, slots=True)
class McNemar:
    """only_a, only_b: samples that one of two models alone gets right. p: two-sided and exact."""

    only_a: int
    only_b: int
    p: float


def mcnemar(a: Tensor, b: Tensor) -> McNemar:
    """Whether two models are right equally often on the same samples, (N,) flags each: the exact binomial form.

    >>> import torch
    >>> mcnemar(torch.tensor([True] * 6), torch.tensor([False] * 6))
    McNemar(only_a=6, only_b=0, p=0.03125)
    """
    if a.shape != b.shape:
        raise ValueError(f"both need the same samples, got {tuple(a.shape)} and {tuple(b.shape)}")
    for flags in (a, b) if len(a) else ():
        check_flags(flags)
    a, b = a.bool(), b.bool()
    only_a, only_b = int((a & ~b).sum()), int((b & ~a).sum())
    return McNemar(only_a, only_b, sign_test(only_a, only_b))


def sign_test(wins: int, losses: int, *, alternative: Literal["two-sided", "less", "greater"] = "two-sided") -> float:
    """The exact binomial p that wins and losses are equally likely, against other chances, fewer or more wins.

    >>> round(sign_test(0, 10, alternative="less"), 6)
    0.000977
    """
    from scipy.stats import binomtest  # type: ignore[import-untyped]  # half a second, for those who need it

    n = wins + losses
    return float(binomtest(wins, n, 0.5, alternative).pvalue) if n else 1.0


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
    its level also for few discordant pairs. McNemar's exact test is the more cautious of the two, so where it finds no
    difference the interval is extended to 0: it excludes 0 exactly where p is below 1 - level.

    >>> import torch
    >>> a, b = torch.arange(100) < 90, torch.arange(100) < 80
    >>> found = paired_difference(a, b)
    >>> round(found.lead, 2), found.p < 0.05
    (0.1, True)
    """
    p, n = mcnemar(a, b).p, len(a)
    if n == 0:
        return Paired(0.0, -1.0, 1.0, p, 0, level)
    found = bounded_mean(a.double() - b.double(), (-1.0, 1.0), extra=1, z=float(ndtri(0.5 + level / 2)))
    low, high = (found.low, found.high) if p < 1 - level else around(0.0, (found.low, found.high))
    return Paired(found.value, low, high, p, n, level)


def fisher_p(wrong_in: int, n_in: int, wrong_out: int, n_out: int) -> float:
    """Fisher's exact one-sided p: as many errors inside a part or more, were the part picked without regard to them.

    >>> round(fisher_p(3, 3, 0, 3), 3)  # one in 20 ways to place three errors
    0.05
    """
    from scipy.stats import hypergeom

    return float(hypergeom.sf(wrong_in - 1, n_in + n_out, wrong_in + wrong_out, n_in))


def holm(p: Sequence[float]) -> list[float]:
    """p-values adjusted so that all those under a level together err at most at that level (family-wise).

    >>> holm([0.01, 0.04, 0.03])
    [0.03, 0.06, 0.06]
    """
    require(all(0 <= one <= 1 for one in p), f"p-values must be in [0, 1], got {list(p)}")
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
    from scipy.stats import false_discovery_control

    return [float(value) for value in false_discovery_control(list(p))] if p else []
