"""A covariance that can be inverted, however few the samples."""

from __future__ import annotations

import torch
from torch import Tensor

from holdfast.errors import require

FLOOR = 1e-10
"""Least eigenvalue kept, as a share of the largest: below it is rounding."""
LEAST = 1e-12
"""Least eigenvalue of all, for data without any variance."""


def ledoit_wolf(centred: Tensor) -> float:
    """The share of (tr S / D)·I that minimises the expected squared error of the covariance (Ledoit & Wolf, 2004).

    centred: (N, D), with mean 0. Few samples ask for much, many for next to nothing.
    """
    n, d = centred.shape
    squares = centred.square()
    covariance = centred.T @ centred / n
    trace_mean = squares.sum() / n / d
    beta = (squares.T @ squares).sum() / n - covariance.square().sum()
    delta = covariance.square().sum() - d * trace_mean**2
    if not delta > 0:
        return 1.0
    return float((beta / n / delta).clamp(0, 1))


def shrunk_covariance(centred: Tensor, *, shrinkage: float | None = None) -> tuple[Tensor, float]:
    """((D, D) covariance, share of shrinkage) of centred (N, D) in float64. shrinkage: None is Ledoit and Wolf's."""
    require(shrinkage is None or 0 <= shrinkage <= 1, f"shrinkage must be in [0, 1], got {shrinkage}")
    centred = centred.double()
    n, d = centred.shape
    share = ledoit_wolf(centred) if shrinkage is None else shrinkage
    covariance = centred.T @ centred / n
    covariance *= 1 - share
    covariance.diagonal().add_(share * centred.square().sum() / n / d)
    return covariance, share


def whitening(covariance: Tensor) -> Tensor:
    """(D, D) W with W Wᵀ the inverse covariance; directions without any variance get the floor's."""
    values: Tensor
    vectors: Tensor
    values, vectors = torch.linalg.eigh(covariance)
    least = max(float(values[-1]) * FLOOR, LEAST)
    return vectors * values.clamp(min=least).rsqrt()
