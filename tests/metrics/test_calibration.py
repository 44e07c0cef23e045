"""Calibration against torchmetrics, by hand, and what its interval and test promise."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from holdfast.metrics import (
    bin_edges,
    ece,
    reliability,
)
from tests.metrics.conftest import seeded


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


@pytest.mark.slow
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
