"""How well scores rank one kind of sample above another, and whether two rankings of the same samples differ."""

from __future__ import annotations

import math
from statistics import NormalDist

import torch
from torch import Tensor

from holdfast.metrics.significance import Paired


def placements(lower: Tensor, upper: Tensor) -> tuple[Tensor, Tensor]:
    """The share of the other kind that each sample is on the right side of; a tie counts half. Their mean is the AUROC.

    lower, upper: (N,) and (M,) scores of the samples that should be low and high.

    >>> placements(torch.tensor([1.0, 2.0]), torch.tensor([2.0, 3.0]))
    (tensor([1.0000, 0.7500], dtype=torch.float64), tensor([0.7500, 1.0000], dtype=torch.float64))
    """
    return 1 - _below(lower, upper), _below(upper, lower)


def _below(values: Tensor, others: Tensor) -> Tensor:
    """(N,) the share of the others that is below each value, those that equal it by half."""
    ordered = others.sort().values
    under, up_to = (torch.searchsorted(ordered, values.contiguous(), right=right) for right in (False, True))
    return (under + up_to).double() / (2 * len(others))


def paired_auroc(
    first: tuple[Tensor, Tensor], second: tuple[Tensor, Tensor], *, level: float = 0.95, extra: int = 1
) -> Paired:
    """How far one score's AUROC leads another's on the same samples (DeLong, DeLong and Clarke-Pearson, 1988).

    first, second: what each says of the (N,) samples that should be low and of the (M,) that should be high, N, M > 1.
    The lead is the mean of the differences of :func:`placements`, over either kind, and its variance the sum of
    their variances over N and M. For the interval ``extra`` differences of -1 and of 1 join either kind, as in Bonett
    and Price's interval of a share: two perfect rankings of few samples may still differ on the next one. With none it
    is DeLong's own. p: DeLong's test, two-sided; 1 where no sample is placed differently.
    """
    shapes = [tuple(scores.shape) for scores in (*first, *second)]
    if shapes[:2] != shapes[2:] or any(len(shape) != 1 or shape[0] < 2 for shape in shapes):
        raise ValueError(f"both need the same samples, two or more of each kind, got {shapes}")
    gaps = [mine - theirs for mine, theirs in zip(placements(*first), placements(*second), strict=True)]
    lead = float(gaps[1].mean())
    error = _standard_error(gaps)
    # erfc keeps the digits of a small p, which 1 + erf would lose
    p = math.erfc(abs(lead) / error / math.sqrt(2)) if error > 0 else float(lead == 0)
    ends = torch.tensor([-1.0, 1.0], dtype=torch.float64).repeat(extra)
    half = NormalDist().inv_cdf(0.5 + level / 2) * _standard_error([torch.cat([gap, ends]) for gap in gaps])
    return Paired(lead, max(-1.0, lead - half), min(1.0, lead + half), p, sum(map(len, gaps)), level)


def _standard_error(gaps: list[Tensor]) -> float:
    return math.sqrt(sum(float(gap.var()) / len(gap) for gap in gaps))
