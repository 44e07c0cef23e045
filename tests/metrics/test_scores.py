"""Scores of predictions against scikit-learn."""

from __future__ import annotations

import numpy as np
import pytest
from sklearn import metrics as sk
from torch import Tensor

from holdfast.metrics import (
    brier,
    nll,
    top_k,
)


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
