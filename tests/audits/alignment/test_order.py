"""Another order of unnamed outputs is found on one half of the sample and judged on the other."""

from __future__ import annotations

import torch
from torch import Tensor

from holdfast.audits.alignment.alignment_probes import find_order


def predictions(labels: Tensor, right: float, classes: int = 10) -> Tensor:
    generator = torch.Generator().manual_seed(1)
    wrong = torch.randint(classes, labels.shape, generator=generator)
    return torch.where(torch.rand(len(labels), generator=generator) < right, labels, wrong)


LABELS = torch.randint(10, (512,), generator=torch.Generator().manual_seed(0))


def test_sorted_as_text_instead_of_by_number() -> None:
    """Twelve classes: as text, 10 and 11 come before 2."""
    labels = torch.randint(12, (512,), generator=torch.Generator().manual_seed(0))
    as_text = torch.tensor(sorted(range(12), key=str))  # output i stands for class as_text[i]
    outputs = as_text.argsort()[predictions(labels, 0.8, 12)]
    found = find_order(outputs, labels, 12)
    assert found is not None
    columns, paired = found
    assert columns == tuple(as_text.argsort().tolist())
    assert paired.n == 256


def test_the_right_order_and_a_clueless_model_raise_no_alarm() -> None:
    assert find_order(predictions(LABELS, 0.8), LABELS, 10) is None
    assert find_order(predictions(LABELS, 0.0), LABELS, 10) is None
    assert find_order(torch.zeros_like(LABELS), LABELS, 10) is None
