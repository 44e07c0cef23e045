"""Metrics over groups: worst-group accuracy, the widest gap, functions of several estimates."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import torch
from scipy.special import ndtri  # type: ignore[import-untyped]
from torch import Tensor

from holdfast.metrics.intervals import Estimate, around, wilson_interval


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

    The lowest of many noisy proportions is biased downward, so its own interval would be too narrow. The lower end is
    the lowest of all lower ends (only the truly worst cell can err). The upper end is the lowest of all upper ends,
    each at a level divided by the number of cells (Bonferroni), because any of them can err.
    """
    cells = [(hit, n) for hit, n in zip(hits, counts, strict=True) if n > 0]
    hit, n = min(cells, key=lambda cell: (cell[0] / cell[1], -cell[1]))
    z = _simultaneous(len(cells))
    low = min(wilson_interval(*cell)[0] for cell in cells)
    high = min(wilson_interval(*cell, z=z)[1] for cell in cells)
    return Estimate(hit / n, *around(hit / n, (low, high)), n)


def widest_gap(hits: Sequence[int], counts: Sequence[int]) -> Estimate:
    """Highest minus lowest of several proportions, with an interval that allows for having picked the two."""
    cells = [(hit, n) for hit, n in zip(hits, counts, strict=True) if n > 0]
    shares = [hit / n for hit, n in cells]
    bounds = [wilson_interval(*cell, z=_simultaneous(len(cells))) for cell in cells]
    low = max(b[0] for b in bounds) - min(b[1] for b in bounds)
    high = max(b[1] for b in bounds) - min(b[0] for b in bounds)
    gap = max(shares) - min(shares)
    return Estimate(gap, *around(gap, (max(0.0, low), high)), sum(n for _, n in cells))


def _simultaneous(count: int) -> float:
    """Normal quantile at which ``count`` two-sided intervals hold together with 95 % (Bonferroni)."""
    return float(ndtri(1 - 0.025 / count))
