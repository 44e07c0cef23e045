"""The spectral density of a symmetric matrix, by stochastic Lanczos quadrature."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

import torch
from torch import Tensor

from holdfast.curvature.krylov import Krylov, checked_size, rows_that_fit
from holdfast.curvature.matrices import Matvec
from holdfast.errors import require


@dataclass(frozen=True, eq=False)
class Density:
    """The share of eigenvalues a unit of λ, smoothed by a Gaussian of width sigma; its integral is 1.

    grid, values: (G,) float64. nodes, weights: (m,) the quadrature behind it; the weights sum to 1.
    """

    grid: Tensor
    values: Tensor
    nodes: Tensor
    weights: Tensor
    sigma: float


def density(
    matvec: Matvec,
    probes: Iterable[Tensor],
    *,
    steps: int = 40,
    points: int = 256,
    sigma: float | None = None,
) -> Density:
    """The spectral density by stochastic Lanczos quadrature (Ubaru, Chen and Saad, 2017).

    probes: random vectors (n,); the more, the less noise. steps: products for each; the more, the finer.
    sigma: width of the smoothing; None is a hundredth of the span of the nodes.
    """
    require(steps >= 1, f"steps must be >= 1, got {steps}")
    found = []
    for probe in probes:
        size = min(steps, checked_size(probe))
        krylov = Krylov(matvec, probe, rows_that_fit(probe, size + 1, size + 1))
        for _ in range(size):
            krylov.extend()
        krylov.read()
        found.append(krylov.quadrature())
    require(bool(found), "a density needs at least one probe, got none")
    nodes, weights = (torch.cat(parts) for parts in zip(*found, strict=True))
    return smoothed(nodes, weights / len(found), points=points, sigma=sigma)


def smoothed(nodes: Tensor, weights: Tensor, *, points: int = 256, sigma: float | None = None) -> Density:
    """A density from a quadrature: a Gaussian at each node, on a grid that holds all but their far tails."""
    low, high = float(nodes.min()), float(nodes.max())
    if sigma is None:
        sigma = (high - low) / 100 or max(abs(high), 1.0) / 100
    require(sigma > 0, f"sigma must be > 0, got {sigma}")
    require(points >= 2, f"points must be >= 2, got {points}")
    grid = torch.linspace(low - 5 * sigma, high + 5 * sigma, points, dtype=torch.float64)
    bells = torch.exp(-(((grid[:, None] - nodes) / sigma) ** 2) / 2) / (sigma * math.sqrt(2 * math.pi))
    return Density(grid, bells @ weights, nodes, weights, sigma)
