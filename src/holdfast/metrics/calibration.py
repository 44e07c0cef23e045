"""How far confidence can be relied on: top-k, likelihood and Brier score per sample, calibration error, and
abstention, which is error among the samples that a model answers (risk) against the share that it answers
(coverage)."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from holdfast.errors import HoldfastError, require
from holdfast.metrics.intervals import RESAMPLES, Estimate, around, bootstrap
from holdfast.metrics.metric_inputs import check_confidence, check_logits


def top_k(logits: Tensor, labels: Tensor, k: int) -> Tensor:
    """(N,) whether the label is among the k largest of (N, K) logits.

    >>> top_k(Tensor([[3.0, 2.0, 1.0]]), Tensor([1]), 2)
    tensor([True])
    """
    check_logits(logits, labels)
    return (logits.topk(min(k, logits.shape[1]), dim=1).indices == labels[:, None]).any(1)


def nll(logits: Tensor, labels: Tensor) -> Tensor:
    """(N,) negative log-likelihood of the labels, in nats and float64.

    >>> nll(torch.tensor([[0.0, 0.0]]), torch.tensor([1]))  # log 2
    tensor([0.6931], dtype=torch.float64)
    """
    check_logits(logits, labels)
    return F.cross_entropy(logits.double(), labels, reduction="none")


def brier(logits: Tensor, labels: Tensor) -> Tensor:
    """(N,) squared distance of the probabilities from the truth, summed over classes: 0 is best, 2 worst.

    >>> brier(torch.tensor([[0.0, 0.0], [100.0, 0.0]]), torch.tensor([0, 1]))
    tensor([0.5000, 2.0000], dtype=torch.float64)
    """
    check_logits(logits, labels)
    p = logits.double().softmax(1)
    return (p.square().sum(1) - 2 * p.gather(1, labels[:, None]).squeeze(1) + 1).clamp_min(0)


def fit_temperature(logits: Tensor, labels: Tensor) -> float:
    """The T for which softmax(logits / T) gives the labels the highest likelihood (Guo et al., 2017).

    (N, K) logits of samples that the model was not fitted on. Above 1, the model was too sure of itself.

    >>> round(fit_temperature(torch.tensor([[2.0, 0.0]] * 3 + [[0.0, 2.0]]), torch.tensor([0, 0, 0, 0])), 3)
    1.82
    """
    from scipy.optimize import minimize_scalar  # type: ignore[import-untyped]  # slow to import

    check_logits(logits, labels)
    wide = logits.double()

    def loss(log_t: float) -> float:
        return float(nll(wide / math.exp(log_t), labels).mean())

    return math.exp(minimize_scalar(loss, bounds=(-5.0, 5.0), method="bounded", options={"xatol": 1e-7}).x)


CHANCE_DRAWS = 200


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

    >>> bin_edges(torch.tensor([0.1, 0.6, 0.7, 0.9]), bins=2, adaptive=True)
    tensor([0.0000, 0.6000, 1.0000], dtype=torch.float64)
    """
    if bins < 1:
        raise ValueError(f"bins must be >= 1, got {bins}")
    if not adaptive:
        return torch.linspace(0, 1, bins + 1, dtype=torch.float64)
    ordered = confidence.double().cpu().sort().values
    last = (torch.arange(1, bins, dtype=torch.float64) * len(ordered) / bins).ceil().long() - 1
    return torch.tensor(sorted({0.0, *ordered[last.clamp_min(0)].tolist(), 1.0}), dtype=torch.float64)


def reliability(confidence: Tensor, correct: Tensor, *, bins: int = 15, adaptive: bool = False) -> Reliability:
    """Confidence (N,) in [0, 1] and correctness (N,), N > 0, gathered in bins of confidence.

    >>> found = reliability(torch.tensor([0.6, 0.6, 0.9, 0.9]), torch.tensor([True, False, True, True]), bins=2)
    >>> found.accuracy
    (0.75,)
    """
    check_confidence(confidence, correct)
    edges = bin_edges(confidence, bins=bins, adaptive=adaptive)
    place, count = _places(confidence, edges), len(edges) - 1
    n = torch.bincount(place, minlength=count)
    both = torch.stack([confidence.double().cpu(), correct.double().cpu()], 1)
    sums = torch.zeros(count, 2, dtype=torch.float64).index_add_(0, place, both)
    kept = (n > 0).nonzero().flatten()
    columns = (edges[:-1], edges[1:], n, *(sums / n[:, None]).unbind(1))
    return Reliability(*(tuple(column[kept].tolist()) for column in columns))


@dataclass(frozen=True, slots=True)
class CalibrationError:
    """ECE with its interval, and what chance alone would give: the mean and the 97.5 % quantile of the ECE of a
    perfectly calibrated model with the same confidences. An ECE below that quantile is no evidence of miscalibration.
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

    Noise makes every bin look miscalibrated: an estimate is at most the truth and what chance alone gives. So the lower
    end is the estimate less chance_high, and 0 where chance explains the estimate. Redrawn samples add as much noise
    again; the upper end is their upper quantile. A simulation in the tests shows that the level holds.

    >>> confidence, correct = torch.full((100,), 0.9), torch.arange(100) < 60  # 90 % sure, 60 % right
    >>> round(ece(confidence, correct, generator=torch.Generator().manual_seed(0)).estimate.value, 3)
    0.3
    """
    check_confidence(confidence, correct)
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
    chance, chance_high = float(fair.mean()), float(fair.quantile(0.975))
    interval = around(found.value, (max(0.0, found.value - chance_high), min(1.0, found.high)))
    return CalibrationError(Estimate(found.value, *interval, found.n), chance, chance_high)


def _places(confidence: Tensor, edges: Tensor) -> Tensor:
    """(N,) which bin each falls into; a bin has its upper end, the first its lower one too."""
    return torch.bucketize(confidence.double().cpu(), edges[1:-1], right=False)


LEVEL = 0.95
TRIED = 20


@dataclass(frozen=True, slots=True)
class RiskCoverage:
    """Points of the curve from the surest samples to all of them, one per distinct confidence.

    threshold: samples of at least this confidence are answered. coverage: their share. risk: the share of them that is
    wrong. n: samples in all.
    """

    threshold: tuple[float, ...]
    coverage: tuple[float, ...]
    risk: tuple[float, ...]
    n: int

    @property
    def area(self) -> float:
        """AURC (Geifman et al., 2019): the mean risk over coverages; samples of one confidence count alike."""
        steps = zip((0.0, *self.coverage), self.coverage, self.risk, strict=False)
        return sum((high - low) * risk for low, high, risk in steps)


def risk_coverage(confidence: Tensor, correct: Tensor) -> RiskCoverage:
    """The curve of (N,) confidences in [0, 1] and correctness (N,), N > 0.

    >>> curve = risk_coverage(torch.tensor([0.9, 0.8, 0.6]), torch.tensor([True, False, True]))
    >>> curve.coverage[0], curve.risk
    (0.3333333333333333, (0.0, 0.5, 0.3333333333333333))
    """
    check_confidence(confidence, correct)
    sure, order = confidence.double().cpu().sort(descending=True, stable=True)
    wrong = (~correct.cpu().bool())[order].double().cumsum(0)
    last = torch.cat([sure[1:] != sure[:-1], torch.tensor([True])]).nonzero().flatten()  # equal ones go together
    answered = (last + 1).double()
    threshold, coverage, risk = sure[last], answered / len(sure), wrong[last] / answered
    return RiskCoverage(tuple(threshold.tolist()), tuple(coverage.tolist()), tuple(risk.tolist()), len(sure))


def threshold_for_coverage(confidence: Tensor, coverage: float) -> float:
    """The highest threshold at which at least this share of (N,) confidences is answered.

    >>> threshold_for_coverage(torch.tensor([0.25, 0.5, 0.75, 1.0]), 0.75)
    0.5
    """
    require(0 < coverage <= 1, f"coverage must be in (0, 1], got {coverage}")
    ordered = confidence.double().cpu().sort(descending=True).values
    return float(ordered[math.ceil(coverage * len(ordered) - 1e-9) - 1])


def threshold_for_risk(confidence: Tensor, correct: Tensor, risk: float, *, level: float = LEVEL) -> float:
    """The lowest threshold above which new samples are wrong at most so often, with this certainty.

    Candidates are the thresholds of ``TRIED`` coverages. Each is judged by the upper end of the exact (Clopper and
    Pearson) interval of its risk, at a level that accounts for all of them (Bonferroni).

    >>> confidence = torch.linspace(0, 1, 1000)
    >>> correct = confidence > 0.4  # wrong below
    >>> 0.3 < threshold_for_risk(confidence, correct, 0.05) < 0.45
    True
    """
    from scipy.stats import beta  # type: ignore[import-untyped]  # half a second, for those who need it

    require(0 < risk < 1, f"risk must be in (0, 1), got {risk}")
    check_confidence(confidence, correct)
    for share in range(TRIED, 0, -1):
        threshold = threshold_for_coverage(confidence, share / TRIED)
        answered = confidence.double().cpu() >= threshold
        n, wrong = int(answered.sum()), int((~correct.cpu().bool() & answered).sum())
        if wrong < n and float(beta.ppf(1 - (1 - level) / TRIED, wrong + 1, n - wrong)) <= risk:
            return threshold
    few = f"{len(confidence)} held-out samples, {float((~correct.bool()).double().mean()):.1%} of which are wrong"
    remedy = "allow more risk, or give more held-out samples"
    raise HoldfastError(f"no confidence bounds the error of {few}, at {risk:g}; {remedy}")
