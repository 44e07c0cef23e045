"""Numbers that say how well predictions fit, with their intervals. Pure functions."""

from __future__ import annotations

import math

import torch
from torch import Tensor

Z95 = 1.959963984540054
"""97.5 % quantile of the normal distribution."""


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
    return max(0.0, centre - half), min(1.0, centre + half)


def mean_interval(values: Tensor, z: float = Z95) -> tuple[float, float, float]:
    """(mean, low, high) of a sample by the normal approximation.

    >>> mean_interval(torch.tensor([2.0, 2.0]))
    (2.0, 2.0, 2.0)
    """
    values = values.double()
    mean = float(values.mean())
    half = z * float(values.std()) / math.sqrt(len(values)) if len(values) > 1 else math.inf
    return mean, mean - half, mean + half


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
