"""Whether outputs without names stand in another order than the data's classes."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from holdfast.audits.alignment.preprocessing_probe import LEAST_LEAD, LEVEL
from holdfast.metrics import Paired, paired_difference


@dataclass(frozen=True)
class Order:
    """columns: the output of each class. paired: its lead over the order as it is, on samples that did not choose."""

    columns: tuple[int, ...]
    paired: Paired


def find_order(predicted: Tensor, labels: Tensor, classes: int) -> Order | None:
    """An order that is surely better by enough to matter, or None.

    predicted, labels: (N,). Every second sample chooses the assignment with the most hits; the others judge it.
    """
    from scipy.optimize import linear_sum_assignment  # type: ignore[import-untyped]

    choosing, judging = slice(0, None, 2), slice(1, None, 2)
    counts = torch.zeros(classes, classes).index_put_(
        (labels[choosing], predicted[choosing]), torch.tensor(1.0), accumulate=True
    )
    counts += 0.5 * torch.eye(classes)  # where samples say nothing, the order stays
    columns = torch.from_numpy(linear_sum_assignment(counts.numpy(), maximize=True)[1])
    now, then = predicted[judging] == labels[judging], predicted[judging] == columns[labels[judging]]
    paired = paired_difference(then, now, level=LEVEL)
    better = paired.low > 0 and paired.lead > LEAST_LEAD
    return Order(tuple(columns.tolist()), paired) if better else None
