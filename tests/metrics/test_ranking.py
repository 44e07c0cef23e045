"""Leads in AUROC against the sums of DeLong's paper, redrawn samples and simulated coverage."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from scipy import stats
from sklearn import metrics as sk
from torch import Tensor

from holdfast.metrics import auroc_interval, fpr_interval, paired_auroc, placements
from tests.metrics.conftest import seeded


def delong(first: list[list[float]], second: list[list[float]]) -> tuple[list[float], float]:
    """AUROCs and the variance of their difference as the paper writes them: a double sum a model, then covariances."""
    tens, ones = [], []
    for low, high in (first, second):
        psi = [[float(y < x) + 0.5 * float(y == x) for y in low] for x in high]
        tens.append([sum(row) / len(low) for row in psi])
        ones.append([sum(row[j] for row in psi) / len(high) for j in range(len(low))])
    covariance = np.cov(tens) / len(first[1]) + np.cov(ones) / len(first[0])
    contrast = np.array([1.0, -1.0])
    return [float(np.mean(row)) for row in tens], float(contrast @ covariance @ contrast)


def welch(first: tuple[Tensor, Tensor], second: tuple[Tensor, Tensor]) -> float:
    """Degrees of freedom of the difference, by Welch and Satterthwaite."""
    parts = [(a - b).numpy() for a, b in zip(placements(*first), placements(*second), strict=True)]
    each = [np.var(part, ddof=1) / len(part) for part in parts]
    below = sum(v**2 / (len(part) - 1) for v, part in zip(each, parts, strict=True))
    return float(sum(each) ** 2 / below) if below else min(map(len, parts)) - 1


def two_rankings(
    n: int, m: int, seed: int, *, gain: float = 0.5
) -> tuple[tuple[Tensor, Tensor], tuple[Tensor, Tensor]]:
    """Two correlated scores of the same samples, rounded so that some tie; the second tells them apart better."""
    drawn = torch.randn(3, n + m, generator=seeded(seed), dtype=torch.float64)
    truth = (torch.arange(n + m) >= n).double()
    made = [(drawn[0] + 0.7 * own + up * truth).mul(4).round() for own, up in ((drawn[1], 1.0), (drawn[2], 1.0 + gain))]
    return (made[0][:n], made[0][n:]), (made[1][:n], made[1][n:])


@pytest.mark.parametrize(("n", "m", "seed"), [(2, 2, 0), (7, 5, 1), (40, 25, 2), (13, 60, 3)])
def test_the_lead_in_auroc_is_delongs(n: int, m: int, seed: int) -> None:
    first, second = two_rankings(n, m, seed)
    (a, b), variance = delong([s.tolist() for s in first], [s.tolist() for s in second])
    truth = [0] * n + [1] * m
    assert [a, b] == pytest.approx([sk.roc_auc_score(truth, torch.cat(side).numpy()) for side in (first, second)])
    assert [float(p.mean()) for p in placements(*first)] == pytest.approx([a, a])
    usual = found = paired_auroc(first, second)
    assert (found.lead, found.n) == (pytest.approx(a - b), n + m)
    error, freedom = math.sqrt(variance), welch(first, second)
    assert found.p == pytest.approx(2 * stats.t.sf(abs(a - b) / error, freedom) if error else 1.0)
    reach = stats.t.ppf(0.975, freedom) * error
    assert found.low <= max(-1.0, a - b - reach) + 1e-12 or found.low == pytest.approx(a - b - reach)
    assert found.high >= min(1.0, a - b + reach) - 1e-12 or found.high == pytest.approx(a - b + reach)
    swapped = paired_auroc(second, first)
    assert (swapped.lead, swapped.low, swapped.high, swapped.p) == pytest.approx(
        (-usual.lead, -usual.high, -usual.low, usual.p)
    )


@pytest.mark.slow
def test_redrawn_samples_spread_as_delong_says() -> None:
    first, second = two_rankings(120, 80, 4)
    found = paired_auroc(first, second)
    rng = np.random.default_rng(0)
    truth, leads = [0] * 120 + [1] * 80, []
    for _ in range(1000):
        i, j = torch.from_numpy(rng.integers(120, size=120)), torch.from_numpy(rng.integers(80, size=80))
        a, b = (sk.roc_auc_score(truth, torch.cat([side[0][i], side[1][j]]).numpy()) for side in (first, second))
        leads.append(a - b)
    error = abs(found.lead) / stats.t.isf(found.p / 2, welch(first, second))
    assert error == pytest.approx(np.std(leads), rel=0.1)


@pytest.mark.parametrize(("n", "m"), [(10, 10), (100, 10), (26, 26), (200, 26)])
def test_p_and_interval_of_a_lead_agree_on_few_samples(n: int, m: int) -> None:
    """p is under 0.05 exactly where the interval excludes 0, and under the null that is one time in twenty at most."""
    rejected, runs = 0, 600
    for seed in range(runs):
        found = paired_auroc(*two_rankings(n, m, seed, gain=0.0))
        assert (found.p < 0.05) == (not found.low <= 0 <= found.high), seed
        assert found.low <= found.lead <= found.high
        rejected += found.p < 0.05
        apart = paired_auroc(*two_rankings(n, m, seed, gain=1.5))
        assert (apart.p < 0.05) == (not apart.low <= 0 <= apart.high), seed
    assert rejected / runs <= 0.07  # 0.05 expected at most, deviation 0.009
    assert rejected / runs >= 0.01, "an interval that never excludes 0 says nothing"


@pytest.mark.parametrize(("gain", "shift"), [(0.0, 0.0), (0.5, 0.0), (0.3, 3.0)])
def test_the_interval_covers_the_true_lead_in_auroc(gain: float, shift: float) -> None:
    """shift: both are nearly perfect, where DeLong's own interval is too short or nothing at all."""
    sigma = math.sqrt(2 * (1 + 0.7**2))
    truth = stats.norm.cdf((1.0 + shift) / sigma) - stats.norm.cdf((1.0 + shift + gain) / sigma)
    covered, rejected, runs = 0, 0, 1000
    for seed in range(runs):
        drawn = torch.randn(3, 100, generator=seeded(seed), dtype=torch.float64)
        kind = (torch.arange(100) >= 60).double()
        sides = [drawn[0] + 0.7 * own + up * kind for own, up in ((drawn[1], 1 + shift), (drawn[2], 1 + shift + gain))]
        found = paired_auroc(*((s[:60], s[60:]) for s in sides))
        covered += found.low <= truth <= found.high
        rejected += found.p < 0.05
    assert covered / runs >= 0.935
    if gain == 0:
        assert covered / runs <= 0.995
        assert rejected / runs == pytest.approx(0.05, abs=0.025)


def test_the_p_of_a_clear_lead_is_small_and_not_nothing() -> None:
    first, second = two_rankings(400, 300, 5, gain=4.0)
    found = paired_auroc(first, second)
    _, variance = delong([s.tolist() for s in first], [s.tolist() for s in second])
    assert 0 < found.p < 1e-20
    expected = 2 * stats.t.sf(abs(found.lead) / math.sqrt(variance), welch(first, second))
    assert found.p == pytest.approx(expected, rel=1e-6)


def test_two_perfect_rankings_are_not_known_to_be_alike() -> None:
    perfect = (torch.arange(10.0), torch.arange(20.0, 28.0))
    backwards = paired_auroc(perfect, (-perfect[0], -perfect[1]))
    assert (backwards.lead, backwards.p) == (1.0, 0.0), "every sample is placed otherwise, and none less than another"
    found = paired_auroc(perfect, (perfect[0] * 2, perfect[1] * 2))
    assert (found.lead, found.p) == (0.0, 1.0)
    assert found.low < -0.1
    assert found.high > 0.1
    with pytest.raises(ValueError, match="same samples"):
        paired_auroc(perfect, (perfect[0], perfect[1][:5]))
    with pytest.raises(ValueError, match="two or more"):
        paired_auroc((perfect[0][:1], perfect[1]), (perfect[0][:1], perfect[1]))


def uniform(n: int, m: int, ahead: float, seed: int) -> tuple[Tensor, Tensor]:
    """(N,) scores on (0, 1) and (M,) on (ahead, 1 + ahead)."""
    drawn = torch.rand(n + m, generator=seeded(seed), dtype=torch.float64)
    return drawn[:n], drawn[n:] + ahead


def test_an_auroc_of_1_is_known_as_well_as_that_all_of_the_rarer_kind_are_right() -> None:
    """Wilson's bound for 26 of 26, n / (n + z²); DeLong's variance is 0 there."""
    found = auroc_interval(*uniform(1000, 26, 1.0, 0))
    assert (found.value, found.high) == (1.0, 1.0)
    assert found.low == pytest.approx(26 / (26 + stats.norm.ppf(0.975) ** 2))


def test_an_auroc_near_1_is_covered_with_few_of_one_kind() -> None:
    """Of uniform scores it is 1 - (1 - ahead)² / 2; DeLong's own interval covers it in four cases of five."""
    truth, covered = 1 - 0.05**2 / 2, 0
    for seed in range(300):
        found = auroc_interval(*uniform(1000, 52, 0.95, seed))
        covered += found.low <= truth <= found.high
    assert covered >= 0.92 * 300


@pytest.mark.parametrize("few", [26, 100])
def test_the_threshold_of_fpr95_is_uncertain_too(few: int) -> None:
    """Of uniform scores FPR95 is 0.95 - ahead; an interval at the threshold that was found misses it often."""
    covered = 0
    for seed in range(200):
        found = fpr_interval(*uniform(1000, few, 0.7, seed))
        covered += found.low <= 0.25 <= found.high
        assert (found.high == 1) == (few < 72), "under 72 nothing bounds the quantile"
    assert covered >= 0.92 * 200
