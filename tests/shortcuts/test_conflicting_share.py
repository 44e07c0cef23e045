"""The estimate against known shares."""

from __future__ import annotations

import pytest
import torch

from holdfast.shortcuts.conflicting_share import estimate_share


@pytest.mark.parametrize(("n", "share"), [(3000, 0.05), (3000, 0.01), (3000, 0.4), (20_000, 0.02)])
def test_the_estimate_finds_known_shares(n: int, share: float) -> None:
    torch.manual_seed(0)
    upper, lower = torch.distributions.Beta(8.0, 2.0), torch.distributions.Beta(1.0, 9.0)
    count = int(n * share)
    found = estimate_share(torch.cat([upper.sample((count,)), lower.sample((n - count,))]), resamples=100)
    assert found.low <= share <= found.high
    assert found.value == pytest.approx(share, rel=0.25)
    assert (found.probability[:count] >= 0.5).double().mean() > 0.8
    assert (found.probability[count:] >= 0.5).double().mean() < 0.02


def test_a_higher_score_never_counts_less() -> None:
    scores = torch.cat([torch.rand(50) * 0.9, torch.rand(500) * 0.1])
    probability = estimate_share(scores, resamples=1).probability[scores.argsort()]
    assert (probability.diff() >= 0).all()


@pytest.mark.slow
def test_the_interval_covers_as_often_as_it_says() -> None:
    """Of 40 samples from one mixture, the 95 % interval misses the truth at most 6 times (chance: 1 in 100)."""
    torch.manual_seed(1)
    upper, lower = torch.distributions.Beta(8.0, 2.0), torch.distributions.Beta(1.0, 9.0)
    missed = 0
    for i in range(40):
        conflicting = torch.rand(800) < 0.1
        scores = torch.where(conflicting, upper.sample((800,)), lower.sample((800,)))
        found = estimate_share(scores, resamples=60, seed=i)
        missed += not found.low <= 0.1 <= found.high
    assert missed <= 6
