"""Intervals against scipy, closed forms and theory."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from scipy import stats

from holdfast.metrics import (
    bootstrap,
    bounded_mean,
    combined,
    paired_difference,
    proportion,
    proportion_interval,
    wilson_interval,
)
from tests.metrics.conftest import seeded


@pytest.mark.parametrize(("hits", "n"), [(0, 9), (3, 10), (50, 57), (20, 20)])
def test_wilson_as_scipy(hits: int, n: int) -> None:
    expected = stats.binomtest(hits, n).proportion_ci(method="wilson")
    assert wilson_interval(hits, n) == pytest.approx((expected.low, expected.high), abs=1e-12)


@pytest.mark.parametrize("n", [1, 5, 6, 12, 20, 50, 100, 200])
def test_the_interval_of_a_share_covers_93_percent_whatever_the_truth(n: int) -> None:
    """Exact, at the truths beside every end, where coverage jumps; Wilson's alone covers 0.84."""
    hits = np.arange(n + 1)
    low, high = np.array([proportion_interval(int(h), n) for h in hits]).T
    truths = np.clip(np.concatenate([low - 1e-9, low + 1e-9, high - 1e-9, high + 1e-9]), 1e-6, 1 - 1e-6)
    held = (low[:, None] <= truths) & (truths <= high[:, None])
    assert (stats.binom.pmf(hits[:, None], n, truths) * held).sum(0).min() >= 0.93


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
