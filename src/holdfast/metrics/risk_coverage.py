"""Abstention: error among the samples that a model answers (risk) against the share that it answers (coverage)."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from holdfast.errors import HoldfastError, require
from holdfast.metrics.metric_inputs import check_confidence

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
