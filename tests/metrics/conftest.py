"""What tests of metrics share."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor


def seeded(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


@pytest.fixture
def predictions() -> tuple[Tensor, Tensor]:
    """Logits and labels of 400 samples in seven classes, right about half of the time."""
    labels = torch.randint(7, (400,), generator=seeded())
    logits = torch.randn(400, 7, generator=seeded(1))
    logits[torch.arange(400), labels] += 1.5
    return logits, labels
