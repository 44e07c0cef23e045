"""Whether a difference is more than chance (McNemar's and other exact tests, corrections for many of them), and how
well scores rank one kind of sample above another: AUROC and false-positive rates with intervals, and leads."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from scipy.special import ndtri, stdtr, stdtrit  # type: ignore[import-untyped]
from torch import Tensor

from holdfast.errors import require
from holdfast.metrics.intervals import Estimate, around, bounded_mean, proportion_interval, share_interval
from holdfast.metrics.metric_inputs import check_flags, check_numbers


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


def placements(lower: Tensor, upper: Tensor) -> tuple[Tensor, Tensor]:
    """The share of the other kind that each sample is on the right side of; a tie counts half. Their mean is the AUROC.

    lower, upper: (N,) and (M,) scores of the samples that should be low and high.

    >>> placements(torch.tensor([1.0, 2.0]), torch.tensor([2.0, 3.0]))
    (tensor([1.0000, 0.7500], dtype=torch.float64), tensor([0.7500, 1.0000], dtype=torch.float64))
    """
    check_numbers(lower, "low scores")
    check_numbers(upper, "high scores")
    return 1 - _below(lower, upper), _below(upper, lower)


def _below(values: Tensor, others: Tensor) -> Tensor:
    """(N,) the share of the others that is below each value, those that equal it by half."""
    ordered = others.sort().values
    under, up_to = (torch.searchsorted(ordered, values.contiguous(), right=right) for right in (False, True))
    return (under + up_to).double() / (2 * len(others))


def auroc_interval(lower: Tensor, upper: Tensor) -> Estimate:
    """The AUROC of (N,) scores that should be low against (M,) that should be high; N, M > 0.

    The interval is that of a proportion with an effective sample size (:func:`share_interval`), which follows from
    DeLong's variance and from the number of the rarer kind. DeLong's own interval and the bootstrap's are far too
    short where few samples of that kind are misplaced.

    >>> found = auroc_interval(torch.tensor([0.1, 0.4]), torch.tensor([0.4, 0.9]))
    >>> found.value, found.n
    (0.875, 4)
    """
    parts = placements(lower, upper)
    value, rarer = float(parts[1].mean()), min(map(len, parts))
    variance = value * (1 - value) if rarer == 1 else sum(_variances(parts))
    return Estimate(value, *share_interval(value, variance, rarer), len(lower) + len(upper))


def fpr_interval(lower: Tensor, upper: Tensor, recall: float = 0.95) -> Estimate:
    """The share of (N,) low scores at or above the threshold that so much of (M,) high scores reach; N, M > 0.

    The threshold is a quantile of the high scores, so it is uncertain too: two of their order statistics bound it
    whatever the distribution. The lower end is that of the share above the higher one, the upper end that above the
    lower one. With few high scores (under 72 for a recall of 95 %) nothing bounds their quantile from below, and the
    upper end is 1.

    >>> found = fpr_interval(torch.arange(100.0), torch.arange(20.0) + 95)
    >>> found.value, found.high
    (0.04, 1.0)
    """
    from scipy.stats import binom  # half a second, for those who need it

    check_numbers(lower, "low scores")
    check_numbers(upper, "high scores")
    low, high, n = lower.double(), upper.double().sort().values, len(lower)
    missed = len(high) - math.ceil(len(high) * (recall - 1e-12))

    def above(position: int) -> int:
        """Low scores at or above the high score of this rank, counted from 1."""
        if 1 <= position <= len(high):
            return int((low >= high[position - 1]).sum())
        return n if position < 1 else 0

    value = above(missed + 1) / n
    first, last = (int(binom.ppf(level, len(high), 1 - recall)) for level in (0.025, 0.975))
    ends = proportion_interval(above(last + 1), n)[0], proportion_interval(above(first), n)[1]
    return Estimate(value, *around(value, ends), n + len(high))


def paired_auroc(first: tuple[Tensor, Tensor], second: tuple[Tensor, Tensor], *, level: float = 0.95) -> Paired:
    """How far one score's AUROC leads another's on the same samples (DeLong, DeLong and Clarke-Pearson, 1988).

    first, second: what each says of the (N,) samples that should be low and of the (M,) that should be high, N, M > 1.
    The lead d is the mean of the differences of :func:`placements`, over either kind; its variance v is the sum of
    theirs over N and M, with Welch's degrees of freedom. p: two-sided, by Student's t; 1 where no sample is placed
    differently. The interval inverts the same test, so that it excludes 0 exactly where p is below 1 - level. But
    few samples hide what is rare: leads x beyond the observed one are tested with the variance v + abs(x - d) / 2k,
    where k is the number of the rarer kind, as a part of it that one score misses altogether would add.

    >>> low, high = torch.arange(20.0), torch.arange(20.0) + 10
    >>> found = paired_auroc((low, high), (low, low))
    >>> round(found.lead, 3), found.p < 0.05
    (0.375, True)
    """
    shapes = [tuple(scores.shape) for scores in (*first, *second)]
    if shapes[:2] != shapes[2:] or any(len(shape) != 1 or shape[0] < 2 for shape in shapes):
        raise ValueError(f"both need the same samples, two or more of each kind, got {shapes}")
    gaps = [mine - theirs for mine, theirs in zip(placements(*first), placements(*second), strict=True)]
    lead, rarer, parts = float(gaps[1].mean()), min(map(len, gaps)), _variances(gaps)
    variance = sum(parts)
    freedom = sum(part**2 / (len(gap) - 1) for part, gap in zip(parts, gaps, strict=True))
    freedom = variance**2 / freedom if freedom > 0 else rarer - 1
    error, ahead = math.sqrt(variance), abs(lead)
    p = 2 * float(stdtr(freedom, -ahead / error)) if error > 0 else float(lead == 0)
    t = float(stdtrit(freedom, 0.5 + level / 2))
    reach, rare = t * error, t * t / (2 * rarer)
    far = ahead + (rare + math.sqrt(rare**2 + 4 * reach**2)) / 2
    if p < 1 - level:
        near = ahead - reach
    else:  # beyond 0 the variance grows again
        near = min(0.0, ahead - (rare + math.sqrt(max(0.0, rare**2 - 4 * rare * ahead + 4 * reach**2))) / 2)
    low, high = (near, far) if lead >= 0 else (-far, -near)
    return Paired(lead, max(-1.0, low), min(1.0, high), p, sum(map(len, gaps)), level)


def _variances(parts: tuple[Tensor, ...] | list[Tensor]) -> list[float]:
    return [float(part.var()) / len(part) for part in parts]
