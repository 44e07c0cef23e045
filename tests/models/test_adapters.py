"""Fixed batches: cut and padded, and nobody sees it."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from holdfast.models.adapters import FixedBatch


class OnlyFour(nn.Module):
    def forward(self, x: Tensor) -> dict[str, Any]:
        assert len(x) == 4
        return {"logits": x.flatten(1) * 2, "pair": (x, -x)}


@pytest.mark.parametrize("n", [1, 3, 4, 5, 9])
def test_any_number_of_images_comes_back_in_order(n: int) -> None:
    x = torch.rand(n, 1, 2, 2)
    answer = FixedBatch(OnlyFour(), 4)(x)
    assert torch.equal(answer["logits"], x.flatten(1) * 2)
    assert torch.equal(answer["pair"][1], -x)
