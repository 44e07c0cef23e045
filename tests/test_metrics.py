"""Metrics against other libraries, closed forms, and simulations of what intervals and tests promise."""

from __future__ import annotations

import math
from itertools import combinations

import numpy as np
import pytest
import torch
from scipy import stats
from sklearn import metrics as sk
from torch import Tensor

from holdfast.metrics import (
    Estimate,
    benjamini_hochberg,
    bin_edges,
    bootstrap,
    bounded_mean,
    brier,
    combined,
    ece,
    fisher_p,
    harmonic_mean,
    holm,
    lowest,
    mcnemar,
    nll,
    paired_auroc,
    paired_difference,
    placements,
    proportion,
    reliability,
    top_k,
    widest_gap,
    wilson_interval,
)


def seeded(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


@pytest.fixture
def predictions() -> tuple[Tensor, Tensor]:
    """Logits and labels of 400 samples in seven classes, right about half of the time."""
    labels = torch.randint(7, (400,), generator=seeded())
    logits = torch.randn(400, 7, generator=seeded(1))
    logits[torch.arange(400), labels] += 1.5
    return logits, labels


@pytest.mark.parametrize("k", [1, 2, 5, 7, 9])
def test_top_k_as_scikit_learn(predictions: tuple[Tensor, Tensor], k: int) -> None:
    logits, labels = predictions
    expected = sk.top_k_accuracy_score(labels, logits, k=min(k, 6)) if k < 7 else 1.0
    assert float(top_k(logits, labels, k).double().mean()) == pytest.approx(expected)


def test_likelihood_and_brier_score_as_scikit_learn(predictions: tuple[Tensor, Tensor]) -> None:
    logits, labels = predictions
    p = logits.double().softmax(1).numpy()
    assert float(nll(logits, labels).mean()) == pytest.approx(sk.log_loss(labels, p), rel=1e-12)
    expected = ((p - np.eye(7)[labels]) ** 2).sum(1)
    assert brier(logits, labels).numpy() == pytest.approx(expected, abs=1e-12)


@pytest.mark.slow  # torchmetrics takes its time to import
@pytest.mark.parametrize("bins", [1, 10, 15])
def test_calibration_error_as_torchmetrics(predictions: tuple[Tensor, Tensor], bins: int) -> None:
    functional = pytest.importorskip("torchmetrics.functional.classification")
    logits, labels = predictions
    p = logits.double().softmax(1)
    sure, correct = p.max(1).values, p.argmax(1) == labels
    expected = float(functional.multiclass_calibration_error(p, labels, num_classes=7, n_bins=bins, norm="l1"))
    assert reliability(sure, correct, bins=bins).ece == pytest.approx(expected, abs=1e-6)
    found = ece(sure, correct, generator=seeded(), bins=bins, resamples=10)
    assert found.estimate.value == pytest.approx(expected, abs=1e-6)


def test_reliability_by_hand() -> None:
    sure = torch.tensor([0.2, 0.5, 0.55, 0.9, 1.0])
    correct = torch.tensor([False, True, False, True, True])
    curve = reliability(sure, correct, bins=2)
    assert (curve.low, curve.high, curve.n) == ((0.0, 0.5), (0.5, 1.0), (2, 3))
    assert curve.accuracy == pytest.approx((0.5, 2 / 3))
    assert curve.confidence == pytest.approx((0.35, (0.55 + 0.9 + 1) / 3))
    assert curve.ece == pytest.approx((2 * 0.15 + 3 * abs(2 / 3 - 2.45 / 3)) / 5)


def test_adaptive_bins_hold_equally_many_and_keep_equals_together() -> None:
    sure = torch.rand(300, generator=seeded(), dtype=torch.float64)
    curve = reliability(sure, sure > 0.5, bins=15, adaptive=True)
    assert curve.n == (20,) * 15
    tied = torch.cat([torch.full((250,), 0.9), torch.rand(50, generator=seeded()) * 0.8])
    curve = reliability(tied, torch.ones(300).bool(), bins=15, adaptive=True)
    assert sum(curve.n) == 300
    assert curve.n == (20, 20, 260)  # the third bin ends at the tie and takes all of it
    assert len(bin_edges(torch.full((9,), 1.0), adaptive=True)) == 2


@pytest.mark.parametrize("wrong_by", [0.0, 0.03, 0.12])
def test_calibration_interval_holds_its_level(wrong_by: float) -> None:
    """Models whose confidence is too high by a known amount; 95 % of 150 is 142.5, with a deviation of 2.7."""
    generator, held = seeded(5), 0
    for _ in range(150):
        sure = 0.5 + 0.5 * torch.rand(500, generator=generator, dtype=torch.float64)
        correct = torch.rand(500, generator=generator, dtype=torch.float64) < sure - wrong_by
        found = ece(sure, correct, generator=generator, bins=10, resamples=200).estimate
        held += found.low <= wrong_by <= found.high
    assert held >= 134


def test_chance_explains_the_calibration_error_of_a_calibrated_model_only() -> None:
    sure = 0.5 + 0.5 * torch.rand(2000, generator=seeded(), dtype=torch.float64)
    fair = ece(sure, torch.rand(2000, generator=seeded(3), dtype=torch.float64) < sure, generator=seeded())
    assert fair.estimate.low == 0
    assert 0 < fair.chance < fair.chance_high
    vain = ece(sure, torch.rand(2000, generator=seeded(3), dtype=torch.float64) < sure - 0.2, generator=seeded())
    assert vain.estimate.low > fair.chance_high
    assert vain.chance == pytest.approx(fair.chance, rel=0.1)  # depends on the confidences alone


@pytest.mark.parametrize(("hits", "n"), [(0, 9), (3, 10), (50, 57), (20, 20)])
def test_wilson_as_scipy(hits: int, n: int) -> None:
    expected = stats.binomtest(hits, n).proportion_ci(method="wilson")
    assert wilson_interval(hits, n) == pytest.approx((expected.low, expected.high), abs=1e-12)


def test_bounded_mean_is_agresti_coull_on_shares_and_bonett_price_on_pairs() -> None:
    correct = torch.tensor([1.0] * 47 + [0.0] * 3)
    p = (47 + 2) / 54
    half = 1.959964 * math.sqrt(p * (1 - p) / 54)
    found = bounded_mean(correct)
    assert (found.value, found.n) == (0.94, 50)
    assert (found.low, found.high) == pytest.approx((p - half, min(1.0, p + half)), abs=1e-6)
    pairs = torch.tensor([1.0] * 9 + [-1.0] * 2 + [0.0] * 29)
    a, b = 10 / 42, 3 / 42
    half = 1.959964 * math.sqrt((a + b - (a - b) ** 2) / 42)
    found = bounded_mean(pairs, (-1.0, 1.0), extra=1)
    assert (found.low, found.high) == pytest.approx((a - b - half, a - b + half), abs=1e-6)


def test_difference_of_proportions_is_newcombes() -> None:
    """56/70 against 48/80: method 10 in Newcombe (1998), table II."""
    parts = [Estimate(h / n, *wilson_interval(h, n), n) for h, n in ((56, 70), (48, 80))]
    gap = combined(lambda p: p[0] - p[1], parts)
    assert gap.value == pytest.approx(0.2)
    assert (gap.low, gap.high) == pytest.approx((0.0524, 0.3339), abs=5e-5)
    assert gap.n == 150


def test_harmonic_mean() -> None:
    assert harmonic_mean([0.9, 0.6]) == pytest.approx(stats.hmean([0.9, 0.6]))
    assert harmonic_mean([0.9, 0.0]) == 0


@pytest.mark.parametrize(("p", "q"), [(0.98, 0.3), (0.7, 0.6), (1.0, 0.05)])
def test_interval_of_a_harmonic_mean_holds_its_level(p: float, q: float) -> None:
    draw, held, truth = np.random.default_rng(0), 0, stats.hmean([p, q])
    for a, b in zip(draw.binomial(60, p, 1000), draw.binomial(300, q, 1000), strict=True):
        parts = [Estimate(h / n, *wilson_interval(int(h), n), n) for h, n in ((a, 60), (b, 300))]
        found = combined(harmonic_mean, parts)
        held += found.low <= truth <= found.high
    assert held >= 930  # 950 expected, deviation 7


@pytest.mark.parametrize("chances", [[0.8] * 12, [0.5, *[0.9] * 11], [0.7, 0.72, 0.75, *[0.95] * 9]])
def test_intervals_of_the_worst_and_of_the_gap_hold_although_they_are_picked(chances: list[float]) -> None:
    draw, counts, held = np.random.default_rng(1), [40] * len(chances), [0, 0]
    for hits in draw.binomial(40, chances, (600, len(chances))).tolist():
        low, gap = lowest(hits, counts), widest_gap(hits, counts)
        assert low.value == min(hits) / 40
        held[0] += low.low <= min(chances) <= low.high
        held[1] += gap.low <= max(chances) - min(chances) <= gap.high
    assert min(held) >= 555  # 570 expected at least, deviation 5


def test_the_worst_ones_own_interval_would_not_hold() -> None:
    """Why ``lowest`` is there: of twelve equal cells the lowest looks clearly worse than it is."""
    draw, held = np.random.default_rng(1), 0
    for hits in draw.binomial(40, 0.8, (600, 12)).tolist():
        low, high = wilson_interval(min(hits), 40)
        held += low <= 0.8 <= high
    assert held < 500


def test_cells_without_samples_do_not_count() -> None:
    assert lowest([0, 3, 5], [0, 6, 5]).value == 0.5
    assert widest_gap([0, 3, 5], [0, 6, 5]).value == 0.5
    assert widest_gap([3], [6]).value == 0


def test_bootstrap_of_a_mean_is_as_wide_as_theory_says() -> None:
    values = torch.randn(2000, generator=seeded())
    found = bootstrap(values, generator=seeded(), resamples=4000)
    half = 1.96 * float(values.double().std()) / math.sqrt(2000)
    assert found.value == pytest.approx(float(values.double().mean()))
    assert (found.low, found.high) == pytest.approx((found.value - half, found.value + half), abs=0.1 * half)


def test_bootstrap_of_a_ratio_agrees_with_scipy() -> None:
    values = torch.rand(300, 2, generator=seeded()) + torch.tensor([0.0, 1.0])
    found = bootstrap(values, lambda m: m[:, 0] / m[:, 1], generator=seeded(), resamples=3000)
    x, y = values.double().numpy().T
    expected = stats.bootstrap(
        (x, y), lambda a, b, axis: a.mean(axis) / b.mean(axis), paired=True, vectorized=True, n_resamples=3000,
        method="percentile", rng=np.random.default_rng(0),
    ).confidence_interval  # fmt: skip
    assert (found.low, found.high) == pytest.approx((expected.low, expected.high), rel=0.03)


def test_bootstrap_is_repeatable_and_the_same_in_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    values = torch.rand(50, generator=seeded())
    whole = bootstrap(values, generator=seeded(4), resamples=100)
    monkeypatch.setattr("holdfast.metrics.intervals.CELLS", 50 * 7)
    assert bootstrap(values, generator=seeded(4), resamples=100) == whole


def test_pairing_narrows_a_difference() -> None:
    hard = torch.rand(1000, generator=seeded(), dtype=torch.float64)
    a, b = hard < 0.8, hard < 0.75
    found = paired_difference(a, b)
    assert found.low <= 0.05 <= found.high
    apart = combined(lambda p: p[0] - p[1], [proportion(a), proportion(b)])
    assert found.high - found.low < 0.5 * (apart.high - apart.low)
    with pytest.raises(ValueError, match="same samples"):
        paired_difference(a, b[:5])


@pytest.mark.parametrize(
    ("only_a", "only_b"),
    [(0, 0), (3, 0), (5, 0), (12, 5), (12, 9), (7, 7), (40, 80), (140, 90), (0, 200), (1500, 1400), (20300, 19900)],
)
def test_mcnemar_is_the_exact_binomial_test(only_a: int, only_b: int) -> None:
    a = torch.tensor([True] * only_a + [False] * only_b + [True] * 10)
    b = torch.tensor([False] * only_a + [True] * only_b + [True] * 10)
    found = mcnemar(a, b)
    assert (found.only_a, found.only_b) == (only_a, only_b)
    expected = stats.binomtest(only_a, only_a + only_b, 0.5).pvalue if only_a + only_b else 1.0
    assert found.p == pytest.approx(expected, rel=1e-9)


def test_the_lead_by_hand() -> None:
    first = torch.tensor([True, True, False, False, False, True])
    second = torch.tensor([True, False, True, True, True, True])
    found = paired_difference(second, first)
    assert found.lead == pytest.approx(2 / 6)
    # gained 3, lost 1, n 6: (4 - 2) / 8 -+ 1.96 sqrt((6/8 - (2/8)^2) / 8)
    assert (found.low, found.high) == (
        pytest.approx(0.25 - 1.95996 * 0.29315, abs=1e-4),
        pytest.approx(0.82457, abs=1e-4),
    )
    swapped = paired_difference(first, second)
    assert (swapped.low, swapped.high) == (pytest.approx(-found.high), pytest.approx(-found.low))


@pytest.mark.parametrize(("gain", "loss"), [(0.02, 0.02), (0.10, 0.03), (0.3, 0.1)])
def test_the_interval_covers_the_true_difference(gain: float, loss: float) -> None:
    generator = torch.Generator().manual_seed(0)
    draws = torch.rand(2000, 200, generator=generator)
    covered = 0
    for row in draws:
        second_only, first_only = row < gain, row > 1 - loss
        found = paired_difference(second_only, first_only)
        covered += found.low <= gain - loss <= found.high
    assert 0.935 <= covered / len(draws) <= 0.985


def test_a_wider_level_and_no_sample_at_all() -> None:
    a, b = torch.rand(2, 300, generator=seeded()) < torch.tensor([[0.8], [0.6]])
    usual, wide = paired_difference(a, b), paired_difference(a, b, level=0.99)
    ratio = stats.norm.ppf(0.995) / stats.norm.ppf(0.975)
    assert wide.high - wide.low == pytest.approx(ratio * (usual.high - usual.low))
    none = paired_difference(a[:0], b[:0])
    assert (none.lead, none.low, none.high, none.p, none.n) == (0.0, -1.0, 1.0, 1.0, 0)


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
    found = paired_auroc(first, second, extra=0)
    assert (found.lead, found.n) == (pytest.approx(a - b), n + m)
    error = math.sqrt(variance)
    ends = [max(-1.0, a - b - 1.959964 * error), min(1.0, a - b + 1.959964 * error)]
    assert [found.low, found.high] == pytest.approx(ends, abs=1e-6)
    assert found.p == pytest.approx(2 * stats.norm.sf(abs(a - b) / error) if error else 1.0)
    swapped = paired_auroc(second, first)
    usual = paired_auroc(first, second)
    assert (swapped.lead, swapped.low, swapped.high, swapped.p) == pytest.approx(
        (-usual.lead, -usual.high, -usual.low, usual.p)
    )


def test_redrawn_samples_spread_as_delong_says() -> None:
    first, second = two_rankings(120, 80, 4)
    found = paired_auroc(first, second, extra=0)
    rng = np.random.default_rng(0)
    truth, leads = [0] * 120 + [1] * 80, []
    for _ in range(1000):
        i, j = torch.from_numpy(rng.integers(120, size=120)), torch.from_numpy(rng.integers(80, size=80))
        a, b = (sk.roc_auc_score(truth, torch.cat([side[0][i], side[1][j]]).numpy()) for side in (first, second))
        leads.append(a - b)
    assert (found.high - found.low) / (2 * 1.959964) == pytest.approx(np.std(leads), rel=0.1)


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
    assert found.p == pytest.approx(2 * stats.norm.sf(abs(found.lead) / math.sqrt(variance)), rel=1e-6)


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


@pytest.mark.parametrize(
    "table", [(3, 10, 5, 90), (0, 10, 5, 90), (10, 10, 0, 30), (40, 300, 160, 1700), (9, 10, 9, 10)]
)
def test_fisher_as_scipy(table: tuple[int, int, int, int]) -> None:
    wrong_in, n_in, wrong_out, n_out = table
    expected = stats.fisher_exact([[wrong_in, n_in - wrong_in], [wrong_out, n_out - wrong_out]], "greater").pvalue
    assert fisher_p(*table) == pytest.approx(expected, rel=1e-9)


def test_corrections() -> None:
    p = np.random.default_rng(0).uniform(size=20) ** 3
    assert benjamini_hochberg(p.tolist()) == pytest.approx(stats.false_discovery_control(p).tolist())
    closed = _closed_testing(p[:7].tolist())
    assert holm(p[:7].tolist()) == pytest.approx(closed)
    assert holm([]) == benjamini_hochberg([]) == []


def _closed_testing(p: list[float]) -> list[float]:
    """Holm's adjustment by its definition: the largest Bonferroni p of all sets of hypotheses that hold the one."""
    sets = [c for size in range(1, len(p) + 1) for c in combinations(range(len(p)), size)]
    return [max(min(1.0, len(c) * min(p[j] for j in c)) for c in sets if i in c) for i in range(len(p))]
