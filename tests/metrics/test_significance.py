"""McNemar's, Fisher's and paired tests against scipy and by hand; corrections for many."""

from __future__ import annotations

from fractions import Fraction
from itertools import combinations
from math import comb

import numpy as np
import pytest
import torch
from scipy import stats

from holdfast.metrics import (
    benjamini_hochberg,
    fisher_p,
    holm,
    mcnemar,
    paired_difference,
    sign_test,
)
from tests.metrics.conftest import seeded


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


@pytest.mark.parametrize(("wins", "losses"), [(6, 0), (40, 80), (0, 200), (300, 701)])
def test_p_of_mcnemar_is_exact_to_the_last_digits(wins: int, losses: int) -> None:
    """The binomial sum in whole numbers: nothing is rounded to twelve digits on the way."""
    n = wins + losses
    tail = sum(comb(n, k) for k in range(min(wins, losses) + 1))
    assert sign_test(wins, losses) == pytest.approx(float(Fraction(2 * tail, 2**n)), rel=1e-13)


@pytest.mark.parametrize("n", [30, 200, 1000])
def test_the_interval_of_a_lead_excludes_0_exactly_where_mcnemar_does(n: int) -> None:
    for only_a in range(16):
        for only_b in range(min(16, n - only_a + 1)):
            a, b = torch.zeros(2, n, dtype=torch.bool)
            a[:only_a], b[n - only_b :] = True, True
            found = paired_difference(a, b)
            assert (found.p < 0.05) == (not found.low <= 0 <= found.high), (only_a, only_b)


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


@pytest.mark.slow
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
