"""The paired interval covers as often as it says; the test is scipy's."""

from __future__ import annotations

import pytest
import torch
from scipy.stats import binomtest

from holdfast.fronts.alignment.paired import compare, mcnemar


@pytest.mark.parametrize(("gained", "lost"), [(0, 0), (3, 0), (12, 5), (7, 7), (140, 90), (20300, 19900)])
def test_mcnemar_is_the_binomial_test_of_discordant_pairs(gained: int, lost: int) -> None:
    expected = binomtest(gained, gained + lost).pvalue if gained + lost else 1.0
    assert mcnemar(gained, lost) == pytest.approx(expected)


def test_the_lead_by_hand() -> None:
    first = torch.tensor([True, True, False, False, False, True])
    second = torch.tensor([True, False, True, True, True, True])
    found = compare(first, second, level=0.95)
    assert found.lead == pytest.approx(2 / 6)
    # gained 3, lost 1, n 6: (4 - 2) / 8 -+ 1.96 sqrt((6/8 - (2/8)^2) / 8)
    assert (found.low, found.high) == (
        pytest.approx(0.25 - 1.95996 * 0.29315, abs=1e-4),
        pytest.approx(0.82457, abs=1e-4),
    )
    swapped = compare(second, first, level=0.95)
    assert (swapped.low, swapped.high) == (pytest.approx(-found.high), pytest.approx(-found.low))


@pytest.mark.parametrize(("gain", "loss"), [(0.02, 0.02), (0.10, 0.03), (0.3, 0.1)])
def test_the_interval_covers_the_true_difference(gain: float, loss: float) -> None:
    generator = torch.Generator().manual_seed(0)
    draws = torch.rand(2000, 200, generator=generator)
    covered = 0
    for row in draws:
        second_only, first_only = row < gain, row > 1 - loss
        found = compare(first_only, second_only, level=0.95)
        covered += found.low <= gain - loss <= found.high
    assert 0.935 <= covered / len(draws) <= 0.985
