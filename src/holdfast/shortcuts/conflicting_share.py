"""The share of bias-conflicting samples: a mixture of two Beta distributions over scores in [0, 1]."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

ROUNDS = 60
EDGE = 1e-4
"""Scores are kept this far from 0 and 1, where densities may be infinite."""
CELLS = 2**23
"""Resampled scores held at once."""


@dataclass(frozen=True, eq=False)
class ConflictingShare:
    """value: the share of the upper component, which scores high. low, high: 95 % bootstrap interval. probability: (N,)
    of each sample to belong to it."""

    value: float
    low: float
    high: float
    probability: Tensor


def estimate_share(scores: Tensor, *, resamples: int = 200, seed: int = 0) -> ConflictingShare:
    """The share of samples whose score (N,) comes from the upper of two Beta components.

    Samples are counted through a histogram of the scores, so that a resampling costs the same for any N.
    """
    scores = scores.double().cpu().clamp(EDGE, 1 - EDGE)
    places, inverse = _binned(scores)
    counts = torch.bincount(inverse, minlength=len(places)).double()
    value, member = _fit(places, counts[None])
    generator = torch.Generator().manual_seed(seed)
    step, drawn = max(1, CELLS // len(scores)), []
    for first in range(0, resamples, step):
        chosen = torch.randint(len(scores), (min(step, resamples - first), len(scores)), generator=generator)
        again = torch.zeros(len(chosen), len(places), dtype=torch.float64)
        again.scatter_add_(1, inverse[chosen], torch.ones((), dtype=torch.float64).expand(chosen.shape))
        drawn.append(_fit(places, again)[0])
    spread = torch.cat(drawn) if drawn else value
    low, high = (float(torch.quantile(spread, q)) for q in (0.025, 0.975))
    point = float(value[0])
    return ConflictingShare(point, min(low, point), max(high, point), member[0][inverse].float())


def _binned(scores: Tensor, bins: int = 512) -> tuple[Tensor, Tensor]:
    """(the mean score of each used bin, the bin of each sample). Bins are narrow near 0 and 1, as scores are dense."""
    edge = torch.logit(torch.tensor(EDGE, dtype=torch.float64)).abs()
    at = ((torch.logit(scores) + edge) / (2 * edge) * (bins - 1)).round().long()
    count = torch.bincount(at, minlength=bins).double()
    used = count > 0
    sums = torch.zeros_like(count).index_add_(0, at, scores)
    return sums[used] / count[used], (used.cumsum(0) - 1)[at]


def _fit(x: Tensor, counts: Tensor) -> tuple[Tensor, Tensor]:
    """EM with moments for places x (M,) and counts (R, M): (R,) upper shares and (R, M) parts in the upper one."""
    log_x, log_1x = x.log(), (-x).log1p()
    total = counts.sum(1, keepdim=True)
    upper = torch.where(x > 0.5, 0.99, 0.01).expand_as(counts)
    for _ in range(ROUNDS):
        share = ((counts * upper).sum(1, keepdim=True) / total).clamp(1e-9, 1 - 1e-9)
        (high_a, high_b), (low_a, low_b) = (_moments(x, counts * part) for part in (upper, 1 - upper))
        odds = _log_density(high_a, high_b, log_x, log_1x) - _log_density(low_a, low_b, log_x, log_1x)
        upper = torch.sigmoid(share.log() - (-share).log1p() + odds)
        # A broad component would have the tails on both sides: a higher score must never speak less for the upper one.
        upper = torch.where(x <= low_a / (low_a + low_b), 0.0, upper).cummax(1).values
    return (counts * upper).sum(1) / total[:, 0], upper


def _moments(x: Tensor, weight: Tensor) -> tuple[Tensor, Tensor]:
    """(R, 1) each: the Beta parameters with the weighted mean and variance."""
    total = weight.sum(1, keepdim=True).clamp_min(1e-12)
    mean = ((weight * x).sum(1, keepdim=True) / total).clamp(EDGE, 1 - EDGE)
    variance = (weight * (x - mean).square()).sum(1, keepdim=True) / total
    size = (mean * (1 - mean) / variance.clamp_min(1e-6) - 1).clamp_min(1e-2)
    return mean * size, (1 - mean) * size


def _log_density(a: Tensor, b: Tensor, log_x: Tensor, log_1x: Tensor) -> Tensor:
    return torch.lgamma(a + b) - torch.lgamma(a) - torch.lgamma(b) + (a - 1) * log_x + (b - 1) * log_1x
