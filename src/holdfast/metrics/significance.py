"""Whether a difference is more than chance: paired tests, AUROCs of the same samples, corrections for many tests."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from scipy.special import ndtr, ndtri  # type: ignore[import-untyped]
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
    its level also for few discordant pairs.
    """
    p, n = mcnemar(a, b).p, len(a)
    if n == 0:
        return Paired(0.0, -1.0, 1.0, p, 0, level)
    z = float(ndtri(0.5 + level / 2))
    found = bounded_mean(a.double() - b.double(), (-1.0, 1.0), extra=1, z=z)
    return Paired(found.value, found.low, found.high, p, n, level)


def fisher_p(wrong_in: int, n_in: int, wrong_out: int, n_out: int) -> float:
    """Fisher's exact one-sided p: as many errors inside a part or more, were the part picked without regard to them."""
    from scipy.stats import hypergeom

    return float(hypergeom.sf(wrong_in - 1, n_in + n_out, wrong_in + wrong_out, n_in))


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
    from scipy.stats import false_discovery_control

    return [float(value) for value in false_discovery_control(list(p))] if p else []


def placements(lower: Tensor, upper: Tensor) -> tuple[Tensor, Tensor]:
    """The share of the other kind that each sample is on the right side of; a tie counts half. Their mean is the AUROC.

    lower, upper: (N,) and (M,) scores of the samples that should be low and high.

    >>> placements(torch.tensor([1.0, 2.0]), torch.tensor([2.0, 3.0]))
    (tensor([1.0000, 0.7500], dtype=torch.float64), tensor([0.7500, 1.0000], dtype=torch.float64))
    """
    return 1 - _below(lower, upper), _below(upper, lower)


def _below(values: Tensor, others: Tensor) -> Tensor:
    """(N,) the share of the others that is below each value, those that equal it by half."""
    ordered = others.sort().values
    under, up_to = (torch.searchsorted(ordered, values.contiguous(), right=right) for right in (False, True))
    return (under + up_to).double() / (2 * len(others))


def paired_auroc(
    first: tuple[Tensor, Tensor], second: tuple[Tensor, Tensor], *, level: float = 0.95, extra: int = 1
) -> Paired:
    """How far one score's AUROC leads another's on the same samples (DeLong, DeLong and Clarke-Pearson, 1988).

    first, second: what each says of the (N,) samples that should be low and of the (M,) that should be high, N, M > 1.
    The lead is the mean of the differences of :func:`placements`, over either kind, and its variance the sum of
    their variances over N and M. For the interval ``extra`` differences of -1 and of 1 join either kind, as in Bonett
    and Price's interval of a share: two perfect rankings of few samples may still differ on the next one. With none it
    is DeLong's own. p: DeLong's test, two-sided; 1 where no sample is placed differently.
    """
    shapes = [tuple(scores.shape) for scores in (*first, *second)]
    if shapes[:2] != shapes[2:] or any(len(shape) != 1 or shape[0] < 2 for shape in shapes):
        raise ValueError(f"both need the same samples, two or more of each kind, got {shapes}")
    gaps = [mine - theirs for mine, theirs in zip(placements(*first), placements(*second), strict=True)]
    lead = float(gaps[1].mean())
    error = _standard_error(gaps)
    p = 2 * float(ndtr(-abs(lead) / error)) if error > 0 else float(lead == 0)
    ends = torch.tensor([-1.0, 1.0], dtype=torch.float64).repeat(extra)
    half = float(ndtri(0.5 + level / 2)) * _standard_error([torch.cat([gap, ends]) for gap in gaps])
    return Paired(lead, max(-1.0, lead - half), min(1.0, lead + half), p, sum(map(len, gaps)), level)


def _standard_error(gaps: list[Tensor]) -> float:
    return math.sqrt(sum(float(gap.var()) / len(gap) for gap in gaps))
