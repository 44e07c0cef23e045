"""A detector of digits 0 to 4, fitted once for all tests."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from holdfast.data import ArraySplit, load
from holdfast.detect import FittedDetector, MinimiseSettings, fit
from holdfast.train.progress import Progress

QUICK = {
    "vae_loop": MinimiseSettings(epochs=6, lr=3e-3, batch_size=50),
    "encoder_loop": MinimiseSettings(epochs=5, lr=3e-3, batch_size=50, schedule="cosine"),
}


class Recorder(Progress):
    """What was shown: each stage with the steps that it took, which must be those that it announced."""

    def __init__(self) -> None:
        self.stages: list[tuple[str, int]] = []
        self.left = 0

    def begin(self, stage: str, epochs: int, steps: int, done: int) -> None:
        assert self.left == 0, "the stage before has come to its end"
        self.stages.append((stage, epochs * steps))
        self.left = epochs * steps - done

    def step(self) -> None:
        self.left -= 1


@pytest.fixture(scope="session")
def normal() -> Tensor:
    """Digits 0 to 4, uint8 (N, 1, 16, 16)."""
    split = load("digits").train
    assert isinstance(split, ArraySplit)
    return split.images[split.labels < 5]


@pytest.fixture(scope="session")
def fresh() -> ArraySplit:
    """All digits of the test set; those from 5 on were never seen."""
    split = load("digits").test
    assert isinstance(split, ArraySplit)
    return split


@pytest.fixture(scope="session")
def fitted(normal: Tensor) -> FittedDetector:
    return fit(normal, false_alarm_rate=0.1, **QUICK)


@pytest.fixture(scope="session")
def damaged(fresh: ArraySplit) -> Tensor:
    """Known digits under noise."""
    own = fresh.images[fresh.labels < 5].float()
    noise = 70 * torch.randn(own.shape, generator=torch.Generator().manual_seed(0))
    return (own + noise).clamp(0, 255).to(torch.uint8)
