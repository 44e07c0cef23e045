"""Estimates with confidence intervals: proportions, means, any statistic by bootstrap, the worst of several groups."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import torch
from scipy.special import betaincinv, gammaincinv, stdtrit  # type: ignore[import-untyped]
from torch import Tensor

from holdfast.errors import require
from holdfast.metrics.metric_inputs import ROUNDING, check_flags, check_numbers, refuse

Z95 = 1.959963984540054
"""97.5 % quantile of the normal distribution."""
RESAMPLES = 1000
FEWEST_LOSSES = 200
"""Under so many values the mean of something unbounded and skewed has no interval."""
CELLS = 2**18
"""Counts held at once while resampling: bounds the memory, changes no number. Few, so that they stay in the cache."""


@dataclass(frozen=True, slots=True)
class Estimate:
    """A number with its 95 % interval and the number of samples it rests on."""

    value: float
    low: float
    high: float
    n: int


def wilson_interval(successes: float, n: float, z: float = Z95) -> tuple[float, float]:
    """Wilson's interval of a proportion: holds its level also near 0 and 1 and for small n.

    scipy has it for whole counts; here they may be fractional, and z any quantile.

    >>> tuple(round(v, 4) for v in wilson_interval(8, 10))
    (0.4902, 0.9433)
    """
    if n <= 0:
        raise ValueError(f"n must be > 0, got {n}")
    require(-1e-9 <= successes <= n * (1 + 1e-9), f"successes must be in 0..{n:g}, got {successes:g}")
    p = successes / n
    centre = (p + z * z / (2 * n)) / (1 + z * z / n)
    half = z / (1 + z * z / n) * math.sqrt(p * (1 - p) / n + z * z / (4 * n * n))
    # at the ends the formula is exact, its rounding is not
    return (max(0.0, centre - half) if successes else 0.0), (min(1.0, centre + half) if successes < n else 1.0)


def exact_bounds(successes: float, n: float, tail: float = 0.025) -> tuple[float, float]:
    """Clopper and Pearson's bounds of a proportion: each errs with a chance of ``tail`` at most.

    >>> tuple(round(v, 4) for v in exact_bounds(8, 10))
    (0.4439, 0.9748)
    """
    low = float(betaincinv(successes, n - successes + 1, tail)) if successes > 0 else 0.0
    high = float(betaincinv(successes + 1, n - successes, 1 - tail)) if successes < n else 1.0
    return low, high


def proportion_interval(successes: float, n: float) -> tuple[float, float]:
    """The 95 % interval of a proportion: Wilson's, never shorter than the exact one of 93 %.

    So it covers 93 % at least, whatever n and the truth. Wilson's alone covers only 84 % where one failure is already
    more than expected, such as an accuracy of 99.8 % on 100 samples. The exact bounds change it where there are few
    samples, successes or failures.

    >>> tuple(round(v, 4) for v in proportion_interval(99, 100)), round(wilson_interval(99, 100)[1], 4)
    ((0.9455, 0.9996), 0.9982)
    """
    (low, high), exact = wilson_interval(successes, n), exact_bounds(successes, n, 0.035)
    return min(low, exact[0]), max(high, exact[1])


def share_interval(value: float, variance: float, n: float) -> tuple[float, float]:
    """The 95 % interval of a statistic in [0, 1] that rests on n samples, from an estimate of its variance.

    It is that of a proportion with the effective sample size at which a proportion would vary as much. Where few of
    the n samples are wrong, an estimated variance is far too small as often as not. So its ratio to the proportion's,
    value (1 - value) / n, is averaged with 1, weighted by the number of wrong samples and by one: with none wrong
    this is the interval of n right samples in n, with many the estimated variance counts alone.

    >>> share_interval(1.0, 0.0, 30) == proportion_interval(30, 30)
    True
    """
    ratio = (n * n * variance / max(value, 1 - value) + 1) / (n * min(value, 1 - value) + 1)
    return around(value, proportion_interval(value * n / ratio, n / ratio))


def proportion(correct: Tensor) -> Estimate:
    """The share of (N,) flags that are set, N > 0.

    >>> proportion(torch.tensor([True] * 8 + [False] * 2)).value
    0.8
    """
    check_flags(correct)
    n, hits = len(correct), int(correct.sum())
    return Estimate(hits / n, *proportion_interval(hits, n), n)


def mean_interval(values: Tensor) -> tuple[float, float, float]:
    """(mean, low, high) of a sample by Student's t.

    >>> mean_interval(torch.tensor([2.0, 2.0]))
    (2.0, 2.0, 2.0)
    """
    check_numbers(values, "values")
    values = values.double()
    mean = float(values.mean())
    n = len(values)
    half = float(stdtrit(n - 1, 0.975)) * float(values.std()) / math.sqrt(n) if n > 1 else math.inf
    return mean, mean - half, mean + half


def positive_mean(values: Tensor) -> tuple[float, float, float]:
    """(mean, low, high) of (N,) values above 0 that may be rare and large, such as losses; infinite ends for N < 200.

    The interval is that of a Poisson count with the same ratio of mean to deviation: longer upward than Student's,
    which misses too often where a few values make most of the mean. Under 200 values the rare ones are not seen.

    >>> mean, low, high = positive_mean(torch.arange(400.0))
    >>> mean, round(low, 1), round(high, 1)
    (199.5, 188.3, 211.2)
    """
    check_numbers(values, "values")
    values = values.double()
    n, mean = len(values), float(values.mean())
    if n < FEWEST_LOSSES:
        return mean, -math.inf, math.inf
    error = float(values.std()) / math.sqrt(n)
    if error == 0:
        return mean, mean, mean
    count = (mean / error) ** 2
    low, high = (float(gammaincinv(count + more, level)) for more, level in ((0, 0.025), (1, 0.975)))
    return mean, mean * low / count, mean * high / count


def bounded_mean(values: Tensor, ends: tuple[float, float] = (0.0, 1.0), *, extra: int = 2, z: float = Z95) -> Estimate:
    """Mean of (N,) values between two ends, with an interval that does not vanish where all values are the same.

    The normal interval is taken after ``extra`` more values at each end. Two of each on shares in [0, 1] is Agresti and
    Coull's interval; one of each on differences of paired answers in [-1, 1] is Bonett and Price's.

    >>> found = bounded_mean(torch.zeros(100))
    >>> found.value, found.low, round(found.high, 4)
    (0.0, 0.0, 0.0456)
    """
    outside = ~((values >= ends[0] - ROUNDING) & (values <= ends[1] + ROUNDING))  # NaN is
    refuse(values, outside, f"values must be in [{ends[0]:g}, {ends[1]:g}]")
    values = values.double().cpu()
    padded = torch.cat([values, torch.tensor(ends, dtype=torch.float64).repeat(extra)])
    mean, half = float(padded.mean()), z * float(padded.std(correction=0)) / math.sqrt(len(padded))
    value = float(values.mean())
    return Estimate(value, *around(value, (max(ends[0], mean - half), min(ends[1], mean + half))), len(values))


def around(value: float, interval: tuple[float, float]) -> tuple[float, float]:
    """The interval, made to hold its own estimate: rounding, or a biased estimate, may put it just outside."""
    return min(interval[0], value), max(interval[1], value)


def bootstrap(
    values: Tensor,
    statistic: Callable[[Tensor], Tensor] | None = None,
    *,
    generator: torch.Generator,
    resamples: int = RESAMPLES,
) -> Estimate:
    """A statistic of column means with its 95 % interval: between quantiles of it on redrawn samples.

    values: (N,) or (N, K), one row per sample, N > 0. statistic: from means (R, K) to (R,); None is the first column's
    mean. generator: on the CPU.

    >>> found = bootstrap(torch.arange(100.0), generator=torch.Generator().manual_seed(0))
    >>> found.value, found.low < 49.5 < found.high
    (49.5, True)
    """
    check_numbers(values, "values")
    columns, n = values.double().cpu().reshape(len(values), -1), len(values)
    of = statistic if statistic is not None else lambda means: means[:, 0]
    value = float(of(columns.mean(0, keepdim=True))[0])
    drawn = of(torch.cat([counts @ columns for counts in _redrawn(n, resamples, generator)]) / n)
    low, high = drawn.quantile(torch.tensor([0.025, 0.975], dtype=torch.float64)).tolist()
    return Estimate(value, low, high, n)


def _redrawn(n: int, resamples: int, generator: torch.Generator) -> Iterator[Tensor]:
    """How often each of n samples is drawn in each resample, as (R_i, n) float64 pieces of bounded size."""
    step = max(1, CELLS // n)
    for first in range(0, resamples, step):
        rows = min(step, resamples - first)
        index = torch.randint(n, (rows, n), generator=generator)
        index += torch.arange(0, rows * n, n)[:, None]
        yield torch.bincount(index.flatten(), minlength=rows * n).view(rows, n).double()


def worst(correct: Tensor, cells: Tensor) -> float | None:
    """The lowest accuracy among the cells that have samples; None where there is none. Cells < 0 are unknown.

    >>> worst(torch.tensor([True, False, True]), torch.tensor([0, 1, 1]))
    0.5
    """
    known = cells >= 0
    if not bool(known.any()):
        return None
    cells, right = cells[known], correct[known].double()
    hits = torch.zeros(int(cells.max()) + 1, dtype=torch.float64, device=cells.device).index_add_(0, cells, right)
    counts = torch.bincount(cells)
    seen = counts > 0
    return float((hits[seen] / counts[seen]).min())


def combined(function: Callable[[Sequence[float]], float], parts: Sequence[Estimate]) -> Estimate:
    """A function of independent estimates, such as their difference, with an interval made of theirs.

    Each part is moved to the ends of its own interval alone; the moves of the function add up in squares (the method
    of variance estimates recovery). For a difference of two proportions this is Newcombe's interval. The function must
    be monotone in each part.

    >>> first, second = Estimate(0.9, 0.83, 0.94, 100), Estimate(0.7, 0.6, 0.78, 100)
    >>> found = combined(lambda p: p[0] - p[1], [first, second])
    >>> round(found.value, 2), found.low > 0
    (0.2, True)
    """
    values = [part.value for part in parts]
    centre = function(values)
    down = up = 0.0
    for i, part in enumerate(parts):
        ends = [function([*values[:i], end, *values[i + 1 :]]) for end in (part.low, part.high)]
        down += max(0.0, centre - min(ends)) ** 2
        up += max(0.0, max(ends) - centre) ** 2
    return Estimate(centre, centre - math.sqrt(down), centre + math.sqrt(up), sum(part.n for part in parts))


def mean_of_shares(hits: Sequence[int], counts: Sequence[int]) -> Estimate:
    """The mean of several proportions that counts each the same, such as of recalls. Cells without samples do not
    count.

    The variances of the cells add up, and the interval is that of a proportion which varies as much as their mean. A
    cell's own variance is taken with one more sample at the mean of all: one of two samples seldom shows any. That is
    too little for a small cell at 0 or 100 % among large ones that differ from it. So the interval always holds what
    the interval of any one cell leaves open, with the other cells where they are.

    >>> found = mean_of_shares([9, 1], [10, 2])
    >>> found.value, found.n
    (0.7, 12)
    """
    cells = [(hit, n) for hit, n in zip(hits, counts, strict=True) if n > 0]
    value = sum(hit / n for hit, n in cells) / len(cells)
    even = len(cells) ** 2 / sum(1 / n for _, n in cells)  # samples that would give as sure a mean of one proportion
    likely = [((hit + value) / (n + 1), n) for hit, n in cells]
    each = [share * (1 - share) / n * (n + 1) ** 2 / (n * n + n + 1) for share, n in likely]  # unbiased for equal cells
    variance = sum(each) / len(cells) ** 2
    if variance > 0:  # a few small cells may make most of it: Student's t with Satterthwaite's degrees of freedom
        freedom = sum(each) ** 2 / sum(v * v / n for v, (_, n) in zip(each, cells, strict=True))
        variance *= (float(stdtrit(freedom, 0.975)) / Z95) ** 2
    low, high = share_interval(value, variance, even)
    own = [(hit / n, *proportion_interval(hit, n)) for hit, n in cells]
    down, up = (max(share - least for share, least, _ in own), max(most - share for share, _, most in own))
    low, high = max(0.0, min(low, value - down / len(cells))), min(1.0, max(high, value + up / len(cells)))
    return Estimate(value, low, high, sum(n for _, n in cells))


def lowest(hits: Sequence[int], counts: Sequence[int]) -> Estimate:
    """The lowest of several proportions; n is that one's. Cells without samples do not count, one must have some.

    The value is the plain minimum. Where several cells are about equally good it is biased downward, the more so the
    more and the smaller they are, because it picks the unluckiest: twelve cells of 20 samples with a true 80 % have a
    minimum of 65 % on average. The interval allows for that: the lower end is the lowest of all exact lower bounds
    (only the truly worst cell can err), the upper end the lowest of all exact upper bounds at a level that all hold
    together, because any of them can err.

    >>> found = lowest([90, 40], [100, 50])
    >>> found.value, found.n, found.low < 0.8 < found.high
    (0.8, 50, True)
    """
    cells = [(hit, n) for hit, n in zip(hits, counts, strict=True) if n > 0]
    hit, n = min(cells, key=lambda cell: (cell[0] / cell[1], -cell[1]))
    low = min(exact_bounds(*cell)[0] for cell in cells)
    high = min(exact_bounds(*cell, tail=_tail(len(cells)))[1] for cell in cells)
    return Estimate(hit / n, *around(hit / n, (low, high)), n)


def widest_gap(hits: Sequence[int], counts: Sequence[int]) -> Estimate:
    """Highest minus lowest of several proportions, with an interval that allows for having picked the two.

    The plain difference is biased upward, as that of :func:`lowest` is downward.

    >>> found = widest_gap([90, 40], [100, 50])
    >>> round(found.value, 2), found.low < 0.1 < found.high
    (0.1, True)
    """
    cells = [(hit, n) for hit, n in zip(hits, counts, strict=True) if n > 0]
    shares = [hit / n for hit, n in cells]
    bounds = [exact_bounds(*cell, tail=_tail(len(cells))) for cell in cells]
    low = max(b[0] for b in bounds) - min(b[1] for b in bounds)
    high = max(b[1] for b in bounds) - min(b[0] for b in bounds)
    gap = max(shares) - min(shares)
    return Estimate(gap, *around(gap, (max(0.0, low), high)), sum(n for _, n in cells))


def _tail(count: int) -> float:
    """The chance to err at which ``count`` independent bounds hold together with 97.5 % (Sidak)."""
    return float(-math.expm1(math.log1p(-0.025) / count))
