from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch


@pytest.fixture
def unset_memory_is_nan() -> Iterator[None]:
    """Fresh tensors hold NaN, so that reading one before it is written shows."""
    torch.use_deterministic_algorithms(True)
    assert torch.empty(1).isnan()
    yield
    torch.use_deterministic_algorithms(False)
