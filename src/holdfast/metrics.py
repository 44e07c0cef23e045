"""Numbers that say how well predictions fit, with their intervals. Pure functions."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from statistics import NormalDist

import torch
import torch.nn.functional as F
from torch import Tensor

Z95 = 1.959963984540054
"""97.5 % quantile of the normal distribution."""
RESAMPLES = 1000
CHANCE_DRAWS = 200
CELLS = 2**22
"""Counts held at once while resampling: bounds the memory, changes no number."""


@dataclass(frozen=True, slots=True)
class Estimate:
    """A number with its 95 % interval and the number of samples it rests on."""

    value: float
    low: float
    high: float
    n: int


def wilson_interval(successes: float, n: int, z: float = Z95) -> tuple[float, float]:
    """Wilson's interval of a proportion: holds its level also near 0 and 1 and for small n.

    >>> tuple(round(v, 4) for v in wilson_interval(8, 10))
    (0.4902, 0.9433)
    """
    if n <= 0:
        raise ValueError(f"n must be > 0, got {n}")
    p = successes / n
    centre = (p + z * z / (2 * n)) / (1 + z * z / n)
    half = z / (1 + z * z / n) * math.sqrt(p * (1 - p) / n + z * z / (4 * n * n))
    # at the ends the formula is exact, its rounding is not
    return (max(0.0, centre - half) if successes else 0.0), (min(1.0, centre + half) if successes < n else 1.0)


def proportion(correct: Tensor) -> Estimate:
    """The share of (N,) flags that are set, N > 0.

    >>> proportion(torch.tensor([True] * 8 + [False] * 2)).value
    0.8
    """
    n, hits = len(correct), int(correct.sum())
    return Estimate(hits / n, *wilson_interval(hits, n), n)


def mean_interval(values: Tensor, z: float = Z95) -> tuple[float, float, float]:
    """(mean, low, high) of a sample by the normal approximation.

    >>> mean_interval(torch.tensor([2.0, 2.0]))
    (2.0, 2.0, 2.0)
    """
    values = values.double()
    mean = float(values.mean())
    half = z * float(values.std()) / math.sqrt(len(values)) if len(values) > 1 else math.inf
    return mean, mean - half, mean + half


def bounded_mean(values: Tensor, ends: tuple[float, float] = (0.0, 1.0), *, extra: int = 2, z: float = Z95) -> Estimate:
    """Mean of (N,) values between two ends, with an interval that does not vanish where all values are the same.

    The normal interval is taken after ``extra`` more values at each end. Two of each on shares in [0, 1] is Agresti and
    Coull's interval; one of each on differences of paired answers in [-1, 1] is Bonett and Price's.

    >>> found = bounded_mean(torch.zeros(100))
    >>> found.value, found.low, round(found.high, 4)
    (0.0, 0.0, 0.0456)
    """
    values = values.double().cpu()
    more = torch.tensor(ends, dtype=torch.float64).repeat(extra)
    padded = torch.cat([values, more])
    mean, half = float(padded.mean()), z * float(padded.std(correction=0)) / math.sqrt(len(padded))
    value = float(values.mean())
    return Estimate(value, *_around(value, (max(ends[0], mean - half), min(ends[1], mean + half))), len(values))


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


def harmonic_mean(values: Sequence[float]) -> float:
    """One number that is high only when all are; 0 where one is 0.

    >>> harmonic_mean([1.0, 0.5]), harmonic_mean([1.0, 0.0])
    (0.6666666666666666, 0.0)
    """
    return 0.0 if min(values) <= 0 else len(values) / sum(1 / v for v in values)


def combined(function: Callable[[Sequence[float]], float], parts: Sequence[Estimate]) -> Estimate:
    """A function of independent estimates, such as their difference, with an interval made of theirs.

    Each part is moved to the ends of its own interval alone; the moves of the function add up in squares (the method
    of variance estimates recovery). For a difference of two proportions this is Newcombe's interval. The function must
    be monotone in each part.
    """
    values = [part.value for part in parts]
    centre = function(values)
    down = up = 0.0
    for i, part in enumerate(parts):
        ends = [function([*values[:i], end, *values[i + 1 :]]) for end in (part.low, part.high)]
        down += max(0.0, centre - min(ends)) ** 2
        up += max(0.0, max(ends) - centre) ** 2
    return Estimate(centre, centre - math.sqrt(down), centre + math.sqrt(up), sum(part.n for part in parts))


def lowest(hits: Sequence[int], counts: Sequence[int]) -> Estimate:
    """The lowest of several proportions; n is that one's. Cells without samples do not count, one must have some.

    The lowest of many noisy numbers is too low, so its own interval would promise too much. True is: the truth is no
    lower than the lowest lower end (one cell's risk only, the truly worst), and no higher than any upper end, where
    every cell's risk counts: upper ends are taken at a level divided by the number of cells.
    """
    cells = [(hit, n) for hit, n in zip(hits, counts, strict=True) if n > 0]
    hit, n = min(cells, key=lambda cell: (cell[0] / cell[1], -cell[1]))
    z = _simultaneous(len(cells))
    low = min(wilson_interval(*cell)[0] for cell in cells)
    high = min(wilson_interval(*cell, z=z)[1] for cell in cells)
    return Estimate(hit / n, *_around(hit / n, (low, high)), n)


def widest_gap(hits: Sequence[int], counts: Sequence[int]) -> Estimate:
    """Highest minus lowest of several proportions, with an interval that allows for having picked the two."""
    cells = [(hit, n) for hit, n in zip(hits, counts, strict=True) if n > 0]
    shares = [hit / n for hit, n in cells]
    bounds = [wilson_interval(*cell, z=_simultaneous(len(cells))) for cell in cells]
    low = max(b[0] for b in bounds) - min(b[1] for b in bounds)
    high = max(b[1] for b in bounds) - min(b[0] for b in bounds)
    gap = max(shares) - min(shares)
    return Estimate(gap, *_around(gap, (max(0.0, low), high)), sum(n for _, n in cells))


def _simultaneous(count: int) -> float:
    """Normal quantile at which ``count`` two-sided intervals hold together with 95 % (Bonferroni)."""
    return NormalDist().inv_cdf(1 - 0.025 / count)


def _around(value: float, interval: tuple[float, float]) -> tuple[float, float]:
    """The interval, made to hold its own estimate: rounding, or a biased estimate, may put it just outside."""
    return min(interval[0], value), max(interval[1], value)


def top_k(logits: Tensor, labels: Tensor, k: int) -> Tensor:
    """(N,) whether the label is among the k largest of (N, K) logits.

    >>> top_k(torch.tensor([[3.0, 2.0, 1.0]]), torch.tensor([1]), 2)
    tensor([True])
    """
    return (logits.topk(min(k, logits.shape[1]), dim=1).indices == labels[:, None]).any(1)


def nll(logits: Tensor, labels: Tensor) -> Tensor:
    """(N,) negative log-likelihood of the labels, in nats and float64."""
    return F.cross_entropy(logits.double(), labels, reduction="none")


def brier(logits: Tensor, labels: Tensor) -> Tensor:
    """(N,) squared distance of the probabilities from the truth, summed over classes: 0 is best, 2 worst."""
    p = logits.double().softmax(1)
    return (p.square().sum(1) - 2 * p.gather(1, labels[:, None]).squeeze(1) + 1).clamp_min(0)


@dataclass(frozen=True, slots=True)
class Reliability:
    """Confidence against accuracy in bins of confidence; only bins that have samples.

    low, high: ends of a bin, whose upper end belongs to it. confidence, accuracy: means of its samples.
    """

    low: tuple[float, ...]
    high: tuple[float, ...]
    n: tuple[int, ...]
    confidence: tuple[float, ...]
    accuracy: tuple[float, ...]

    @property
    def ece(self) -> float:
        """Expected calibration error: the mean distance between the two, each bin weighted by its samples."""
        gaps = (abs(a - c) * n for a, c, n in zip(self.accuracy, self.confidence, self.n, strict=True))
        return sum(gaps) / sum(self.n)


def bin_edges(confidence: Tensor, *, bins: int = 15, adaptive: bool = False) -> Tensor:
    """(B + 1,) ends of bins over [0, 1]: equally wide, or (adaptive) with equally many samples.

    Equal confidences stay together, so that adaptive bins may be fewer.
    """
    if bins < 1:
        raise ValueError(f"bins must be >= 1, got {bins}")
    if not adaptive:
        return torch.linspace(0, 1, bins + 1, dtype=torch.float64)
    ordered = confidence.double().cpu().sort().values
    last = (torch.arange(1, bins, dtype=torch.float64) * len(ordered) / bins).ceil().long() - 1
    inner = ordered[last.clamp_min(0)]
    return torch.tensor(sorted({0.0, *inner.tolist(), 1.0}), dtype=torch.float64)


def reliability(confidence: Tensor, correct: Tensor, *, bins: int = 15, adaptive: bool = False) -> Reliability:
    """Confidence (N,) in [0, 1] and correctness (N,), N > 0, gathered in bins of confidence."""
    edges = bin_edges(confidence, bins=bins, adaptive=adaptive)
    place, count = _places(confidence, edges), len(edges) - 1
    n = torch.bincount(place, minlength=count)
    columns = torch.stack([confidence.double().cpu(), correct.double().cpu()], 1)
    sums = torch.zeros(count, 2, dtype=torch.float64).index_add_(0, place, columns)
    kept = (n > 0).nonzero().flatten()
    means = (sums / n[:, None])[kept]
    return Reliability(
        low=tuple(edges[:-1][kept].tolist()),
        high=tuple(edges[1:][kept].tolist()),
        n=tuple(n[kept].tolist()),
        confidence=tuple(means[:, 0].tolist()),
        accuracy=tuple(means[:, 1].tolist()),
    )


@dataclass(frozen=True, slots=True)
class CalibrationError:
    """ECE with its interval, and what chance alone would show: the mean and the 97.5 % quantile of the ECE of a
    perfectly calibrated model with the same confidences. Below the quantile, ECE says nothing.
    """

    estimate: Estimate
    chance: float
    chance_high: float


def ece(
    confidence: Tensor,
    correct: Tensor,
    *,
    generator: torch.Generator,
    bins: int = 15,
    adaptive: bool = False,
    resamples: int = RESAMPLES,
) -> CalibrationError:
    """Expected calibration error with a bootstrap interval; bins stay where they are while samples are redrawn.

    Noise makes every bin look miscalibrated, and redrawn samples by as much again. So the lower end is the upper
    quantile reflected at the estimate, which takes that excess off, and 0 where chance explains the estimate; the upper
    end is the upper quantile as it is. A simulation in the tests shows that the level holds.
    """
    sure = confidence.double().cpu()
    place = _places(sure, bin_edges(sure, bins=bins, adaptive=adaptive))
    columns = torch.zeros(len(sure), bins, dtype=torch.float64)
    columns[torch.arange(len(sure)), place] = correct.double().cpu() - sure

    def error(means: Tensor) -> Tensor:
        return means.abs().sum(1)

    found = bootstrap(columns, error, generator=generator, resamples=resamples)
    fair = torch.empty(CHANCE_DRAWS, dtype=torch.float64)
    for i in range(CHANCE_DRAWS):
        gap = (torch.rand(len(sure), generator=generator, dtype=torch.float64) < sure).double() - sure
        fair[i] = torch.zeros(bins, dtype=torch.float64).index_add_(0, place, gap).abs().sum() / len(sure)
    chance_high = float(fair.quantile(0.975))
    low = 0.0 if found.value <= chance_high else max(0.0, 2 * found.value - found.high)
    interval = _around(found.value, (low, min(1.0, found.high)))
    return CalibrationError(Estimate(found.value, *interval, found.n), float(fair.mean()), chance_high)


def _places(confidence: Tensor, edges: Tensor) -> Tensor:
    """(N,) which bin each falls into; a bin has its upper end, the first its lower one too."""
    return torch.bucketize(confidence.double().cpu(), edges[1:-1], right=False)


def bootstrap(
    values: Tensor,
    statistic: Callable[[Tensor], Tensor] | None = None,
    *,
    generator: torch.Generator,
    resamples: int = RESAMPLES,
) -> Estimate:
    """A statistic of column means with its 95 % interval: between quantiles of it on redrawn samples.

    values: (N,) or (N, K), one row a sample, N > 0. statistic: from means (R, K) to (R,); None is the first column's
    mean. generator: on the CPU.
    """
    columns = values.double().cpu()
    columns = columns[:, None] if columns.ndim == 1 else columns
    n = len(columns)
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
