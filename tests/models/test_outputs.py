"""One tensor out of what networks return: taken where it is clear, refused where it is not."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch

from holdfast.errors import HoldfastError
from holdfast.models.adapters import only_tensor, rows

LOGITS = torch.rand(2, 3)
FEATURES = torch.rand(2, 8)


@pytest.mark.parametrize(
    ("output", "taken"),
    [
        (LOGITS, None),
        ({"logits": LOGITS, "features": FEATURES}, "'logits' of a dict"),
        (SimpleNamespace(logits=LOGITS, hidden=FEATURES), "'logits' of a SimpleNamespace"),
        ((LOGITS,), "the only tensor of a tuple"),
        ([LOGITS, "a word"], "the only tensor of a list"),
        ({"out": LOGITS, "aux": None}, "the only tensor of a dict"),
    ],
)
def test_what_is_clear_is_taken_and_said(output: Any, taken: str | None) -> None:
    found, said = only_tensor(output)
    assert found is LOGITS
    assert said == taken


@pytest.mark.parametrize(
    ("output", "message"),
    [
        ((LOGITS, FEATURES), r"a tuple with 2 tensors \(0 \(2, 3\), 1 \(2, 8\)\)"),
        ({"a": LOGITS, "b": FEATURES}, r"a dict with 2 tensors \(a \(2, 3\), b \(2, 8\)\)"),
        ({}, "a dict with 0 tensors"),
        (None, "returns a NoneType without logits"),
    ],
)
def test_what_is_not_clear_is_refused_with_a_way_out(output: Any, message: str) -> None:
    with pytest.raises(HoldfastError, match=message) as caught:
        only_tensor(output)
    assert "python:module:function" in str(caught.value)


def test_rows_are_needed() -> None:
    assert torch.equal(rows(LOGITS[:, :, None, None]), LOGITS)
    with pytest.raises(HoldfastError, match=r"shape \(2, 8, 4, 4\): feature maps"):
        rows(torch.rand(2, 8, 4, 4))
    with pytest.raises(HoldfastError, match=r"shape \(2,\): no row of logits"):
        rows(torch.rand(2))
    with pytest.raises(HoldfastError, match="int64 outputs, labels perhaps"):
        rows(torch.zeros(2, 3, dtype=torch.int64))
