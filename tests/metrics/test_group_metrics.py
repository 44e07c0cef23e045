"""Means over groups, the worst and the gap: closed forms, and simulations of what their intervals promise."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import stats

from holdfast.metrics import (
    Estimate,
    combined,
    harmonic_mean,
    lowest,
    mean_of_shares,
    proportion_interval,
    widest_gap,
    wilson_interval,
)


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


@pytest.mark.parametrize(("small", "large"), [(10, 300), (30, 300), (100, 1000), (100, 100)])
@pytest.mark.parametrize("settled", [[1], [1, 1, 0], [1] * 7, [1, 1, 1, 0, 0, 0, 0], [1] * 19, [0] * 19])
def test_a_small_cell_at_an_end_is_not_certain(small: int, large: int, settled: list[int]) -> None:
    """Exact: one cell varies, the others are right always or never, and by chance it is all right or all wrong too."""
    others, cells = [large * share for share in settled], 1 + len(settled)
    found = [mean_of_shares([hits, *others], [small, *[large] * len(settled)]) for hits in range(small + 1)]
    for p in (0.02, 0.1, 0.5, 0.8, 0.9, 0.95, 0.98):
        truth = (p + sum(settled)) / cells
        held = [f.low <= truth <= f.high for f in found]
        assert stats.binom.pmf(range(small + 1), small, p) @ held >= 0.93, p


@pytest.mark.parametrize("sizes", [(10,), (30,), (100,), (300,), (300, 10, 100, 30)])
@pytest.mark.parametrize(
    "chances", [[1, 0, 1, 0], [0.98, 0.02, 0.98, 0], [0.5, 1, 1, 0], [0.5, 0.98], [0.98] * 8, [1] * 7 + [0.9]]
)
def test_interval_of_a_mean_of_cells_holds_its_level(sizes: tuple[int, ...], chances: list[float]) -> None:
    counts = [sizes[i % len(sizes)] for i in range(len(chances))]
    draw, held, truth = np.random.default_rng(2), 0, np.mean(chances)
    for hits in draw.binomial(counts, chances, (500, len(chances))).tolist():
        found = mean_of_shares(hits, counts)
        held += found.low <= truth + 1e-9 and truth - 1e-9 <= found.high
    assert held >= 460  # 475 expected at least, deviation 5


def test_the_mean_of_equal_cells_has_the_interval_of_one_proportion() -> None:
    """Where no cell is smaller than others nothing is added: four cells of 25 are 100 samples."""
    found = mean_of_shares([25] * 4, [25] * 4)
    assert (found.low, found.high) == pytest.approx(proportion_interval(100, 100), abs=2e-3)


def test_cells_without_samples_do_not_count() -> None:
    assert lowest([0, 3, 5], [0, 6, 5]).value == 0.5
    assert widest_gap([0, 3, 5], [0, 6, 5]).value == 0.5
    assert widest_gap([3], [6]).value == 0
