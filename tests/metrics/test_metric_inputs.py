"""Metrics refuse numbers that would give a result, and a wrong one."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from holdfast import metrics
from holdfast.errors import HoldfastError

GENERATOR = torch.Generator().manual_seed(0)
OF_LOGITS: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "top_k": lambda logits, labels: metrics.top_k(logits, labels, 2),
    "nll": metrics.nll,
    "brier": metrics.brier,
}
OF_CONFIDENCE: dict[str, Callable[[Tensor, Tensor], object]] = {
    "reliability": metrics.reliability,
    "ece": lambda sure, correct: metrics.ece(sure, correct, generator=GENERATOR, resamples=10),
}
OF_VALUES: dict[str, Callable[[Tensor], object]] = {
    "mean_interval": metrics.mean_interval,
    "bounded_mean": metrics.bounded_mean,
    "bootstrap": lambda values: metrics.bootstrap(values, generator=GENERATOR, resamples=10),
    "placements": lambda values: metrics.placements(values, torch.zeros(2)),
    "paired_auroc": lambda values: metrics.paired_auroc((values, values), (values, values)),
}


@pytest.mark.parametrize("name", OF_LOGITS)
def test_logits_and_labels(name: str) -> None:
    metric, logits = OF_LOGITS[name], torch.randn(4, 3, generator=GENERATOR)
    assert metric(logits, torch.tensor([0, 1, 2, 0])).shape == (4,)
    for wrong in (3, -1, -100):  # -100 is what torch's cross-entropy leaves out without a word
        with pytest.raises(HoldfastError, match=rf"labels must be in 0..2; got {wrong} at position 1"):
            metric(logits, torch.tensor([0, wrong, 2, 0]))
    logits[2, 1] = math.nan
    with pytest.raises(HoldfastError, match=r"logits must be numbers; got nan at position \(2, 1\)"):
        metric(logits, torch.tensor([0, 1, 2, 0]))
    with pytest.raises(HoldfastError, match=r"got \(4, 3\) and \(3,\)"):
        metric(logits, torch.tensor([0, 1, 2]))


@pytest.mark.parametrize("name", OF_CONFIDENCE)
def test_confidences(name: str) -> None:
    metric, correct = OF_CONFIDENCE[name], torch.tensor([True, False, True])
    metric(torch.tensor([0.5, 1.0, 1.0 + 1e-7]), correct)
    for wrong in (1.2, -0.1, math.nan):
        with pytest.raises(HoldfastError, match=r"confidence must be in \[0, 1\]; take the softmax"):
            metric(torch.tensor([0.5, wrong, 0.9]), correct)
    with pytest.raises(HoldfastError, match="flags must be 0 or 1; got 2 at position 2"):
        metric(torch.tensor([0.5, 0.6, 0.9]), torch.tensor([0, 1, 2]))
    with pytest.raises(HoldfastError, match=r"both have shape \(N,\), got \(2,\) and \(3,\)"):
        metric(torch.tensor([0.5, 0.6]), correct)
    with pytest.raises(HoldfastError, match="there are no samples"):
        metric(torch.zeros(0), torch.zeros(0, dtype=torch.bool))


@pytest.mark.parametrize("name", OF_VALUES)
def test_values(name: str) -> None:
    OF_VALUES[name](torch.tensor([0.0, 0.5, 1.0]))
    with pytest.raises(HoldfastError, match=r"must be .*; got nan at position 1"):
        OF_VALUES[name](torch.tensor([0.0, math.nan, 1.0]))


def test_shares_and_counts() -> None:
    with pytest.raises(HoldfastError, match="successes must be in 0..10, got 11"):
        metrics.wilson_interval(11, 10)
    with pytest.raises(HoldfastError, match="flags must be 0 or 1; got 0.5 at position 0"):
        metrics.proportion(torch.tensor([0.5, 1.0]))
    with pytest.raises(HoldfastError, match="flags must be 0 or 1; got 3 at position 1"):
        metrics.mcnemar(torch.tensor([1, 3]), torch.tensor([0, 1]))
    assert metrics.mcnemar(torch.tensor([1, 1]), torch.tensor([0, 1])).only_a == 1
    for wrong in (1.5, math.nan):
        with pytest.raises(HoldfastError, match=r"p-values must be in \[0, 1\]"):
            metrics.holm([0.1, wrong])
