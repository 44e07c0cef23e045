"""Abstention and temperature against closed forms and simulations."""

from __future__ import annotations

import pytest
import torch

from holdfast.errors import HoldfastError
from holdfast.metrics import fit_temperature, risk_coverage, threshold_for_coverage, threshold_for_risk


def test_the_curve_in_plain_counts_with_ties_together() -> None:
    confidence = torch.tensor([0.9, 0.5, 0.7, 0.7, 0.6])
    correct = torch.tensor([True, False, True, False, True])
    curve = risk_coverage(confidence, correct)
    assert curve.threshold == pytest.approx((0.9, 0.7, 0.6, 0.5))
    assert curve.coverage == pytest.approx((0.2, 0.6, 0.8, 1.0))
    assert curve.risk == pytest.approx((0, 1 / 3, 1 / 4, 2 / 5))
    assert curve.area == pytest.approx(0.4 / 3 + 0.2 / 4 + 0.2 * 2 / 5)


def test_a_perfect_order_has_the_smallest_area_and_a_useless_one_the_error() -> None:
    correct = torch.arange(1000) < 800
    sure = torch.linspace(1, 0, 1000)
    best = risk_coverage(sure, correct).area
    assert best < risk_coverage(sure[torch.randperm(1000, generator=torch.Generator().manual_seed(0))], correct).area
    assert risk_coverage(torch.full((1000,), 0.5), correct).area == pytest.approx(0.2)


@pytest.mark.parametrize(("coverage", "expected"), [(0.2, 0.9), (0.4, 0.7), (0.5, 0.6), (1.0, 0.1)])
def test_the_threshold_of_a_coverage(coverage: float, expected: float) -> None:
    confidence = torch.tensor([0.6, 0.9, 0.1, 0.7, 0.3])
    assert threshold_for_coverage(confidence, coverage) == pytest.approx(expected)
    assert float((confidence >= threshold_for_coverage(confidence, coverage) - 1e-9).double().mean()) >= coverage


def test_the_risk_that_is_promised_holds_in_95_of_100_draws() -> None:
    """Calibrated confidences, uniform over [0.5, 1]: above t the true risk is (1 − t) / 2."""
    generator, broken, kept = torch.Generator().manual_seed(0), 0, []
    for _ in range(200):
        sure = 0.5 + torch.rand(1000, generator=generator) / 2
        correct = torch.rand(1000, generator=generator) < sure
        try:
            t = threshold_for_risk(sure, correct, 0.15)
        except HoldfastError:  # no promise is not a broken one
            t = 1.0
        broken += (1 - t) / 2 > 0.15
        kept.append((1 - t) * 2)
    assert broken / 200 <= 0.05
    assert sum(kept) / 200 > 0.3, "not by answering next to nothing: 0.6 could be answered"


def test_a_risk_that_cannot_be_promised_is_refused() -> None:
    with pytest.raises(
        HoldfastError, match="no confidence bounds the error of 50 held-out samples, 50.0% of which are wrong, at 0.01"
    ):
        threshold_for_risk(torch.rand(50), torch.arange(50) % 2 == 0, 0.01)


@pytest.mark.parametrize("truth", [0.5, 1.0, 3.0])
def test_the_temperature_is_found_again(truth: float) -> None:
    generator = torch.Generator().manual_seed(1)
    logits = 2 * torch.randn(20_000, 4, generator=generator)
    labels = logits.softmax(1).multinomial(1, generator=generator)[:, 0]
    assert fit_temperature(logits * truth, labels) == pytest.approx(truth, rel=0.04)
