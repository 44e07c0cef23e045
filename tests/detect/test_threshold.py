"""Thresholds: the promised rate, the least cost, and no data no threshold."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from holdfast.detect import Threshold
from holdfast.errors import HoldfastError


@pytest.mark.parametrize("rate", [0.01, 0.05, 0.3])
def test_new_normal_data_is_flagged_at_no_more_than_the_rate(rate: float) -> None:
    """Averaged over many held-out sets: each is small, so a plain quantile would flag visibly more."""
    generator = torch.Generator().manual_seed(0)
    shares = []
    for _ in range(300):
        threshold = Threshold.from_normal(torch.randn(199, generator=generator), false_alarm_rate=rate)
        shares.append(threshold.flag(torch.randn(2000, generator=generator)).float().mean())
    assert float(torch.stack(shares).mean()) == pytest.approx(rate, rel=0.15)


def test_a_score_at_the_threshold_is_normal() -> None:
    assert Threshold(1.0).flag(torch.tensor([0.9, 1.0, 1.1])).tolist() == [False, False, True]


def test_least_cost_by_exhaustion() -> None:
    generator = torch.Generator().manual_seed(1)
    normal, anomalous = torch.randn(60, generator=generator), 1.5 + torch.randn(20, generator=generator)

    def cost(t: float) -> float:
        alarms, misses = float((normal > t).float().mean()), float((anomalous <= t).float().mean())
        return 1 * 0.9 * alarms + 5 * 0.1 * misses

    found = Threshold.from_costs(normal, anomalous, false_alarm=1, miss=5, anomaly_rate=0.1)
    assert cost(found.value) == pytest.approx(min(cost(float(t)) for t in torch.linspace(-5, 6, 5001)))
    assert found.false_alarm_rate == pytest.approx(float((normal > found.value).float().mean()))


def test_dear_misses_lower_it_and_dear_alarms_raise_it() -> None:
    normal, anomalous = torch.linspace(0, 1, 50), torch.linspace(0.5, 1.5, 50)
    careful = Threshold.from_costs(normal, anomalous, false_alarm=1, miss=100, anomaly_rate=0.5)
    bold = Threshold.from_costs(normal, anomalous, false_alarm=100, miss=1, anomaly_rate=0.5)
    assert careful.value < 0.55
    assert bold.value > 0.95


def test_saved_and_loaded(tmp_path: Path) -> None:
    threshold = Threshold.from_normal(torch.rand(50), false_alarm_rate=0.1)
    threshold.save(tmp_path / "threshold.json")
    assert Threshold.load(tmp_path / "threshold.json") == threshold


@pytest.mark.parametrize(
    ("scores", "rate", "message"),
    [
        (torch.empty(0), 0.05, "a threshold needs held-out normal scores, got none"),
        (torch.rand(18), 0.05, "needs at least 19 held-out normal samples, got 18"),
        (torch.tensor([1.0, float("nan")]), 0.5, "NaN or infinite"),
        (torch.rand(5), 0.0, r"false_alarm_rate must be in \(0, 1\), got 0.0"),
        (torch.rand(5, 2), 0.5, r"must have shape \(N,\), got \(5, 2\)"),
    ],
)
def test_bad_input_is_refused(scores: torch.Tensor, rate: float, message: str) -> None:
    with pytest.raises(HoldfastError, match=message):
        Threshold.from_normal(scores, false_alarm_rate=rate)


def test_nineteen_are_enough_for_five_percent() -> None:
    assert Threshold.from_normal(torch.arange(19.0)).value == 18


def test_files_that_are_none_are_refused(tmp_path: Path) -> None:
    with pytest.raises(HoldfastError, match="no threshold at"):
        Threshold.load(tmp_path / "t.json")
    (tmp_path / "t.json").write_text('{"value": 1, "colour": 2}')
    with pytest.raises(HoldfastError, match="cannot read the threshold"):
        Threshold.load(tmp_path / "t.json")
