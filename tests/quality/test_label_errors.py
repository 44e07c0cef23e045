"""What is said of labels where the models that judge them are weak."""

from __future__ import annotations

import pytest
import torch

from holdfast.quality import label_errors
from holdfast.quality.label_errors import judge_labels
from holdfast.settings.command_settings import QualitySettings
from tests.conftest import make_data


@pytest.mark.parametrize(("accuracy", "weak"), [(0.63, True), (0.92, False)])
def test_a_weak_and_confident_network_promises_nothing(
    monkeypatch: pytest.MonkeyPatch, accuracy: float, weak: bool
) -> None:
    """All labels are right. What the network is sure of, and wrong about, must not pass for label errors."""
    data = make_data(600, classes=2)
    generator = torch.Generator().manual_seed(0)
    labels = data.train.labels
    right = torch.rand(len(labels), generator=generator) < accuracy
    chosen = torch.where(right, labels, 1 - labels)
    sure = 0.9 + 0.1 * torch.rand(len(labels), generator=generator)
    p = torch.stack([1 - sure, sure], 1).gather(1, torch.stack([1 - chosen, chosen], 1))
    monkeypatch.setattr(label_errors, "held_out_probabilities", lambda *a, **k: {"train": p.double()})
    judged = judge_labels(data, QualitySettings("mine"))["train"]
    assert (judged.warning("train") is not None) == judged.weak == weak
    if weak:
        assert judged.least_precision is None
        assert judged.suspects
