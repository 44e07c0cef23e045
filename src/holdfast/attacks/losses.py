"""What an attack climbs: one number a sample that rises as the label loses."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Literal

import torch
from torch import Tensor

LossName = Literal["ce", "margin", "dlr"]


def log_odds(logits: Tensor, label: Tensor) -> Tensor:
    """(B,) log of the odds against the label: logΣ_{k≠y} e^{z_k} − z_y.

    Cross-entropy is softplus of it. So both rise together, rank points alike and have the same direction of
    gradient; but the gradient of cross-entropy carries a factor 1 − p_y, which is exactly 0 in float32 for a label
    that the model is sure of, and that of the log-odds does not.

    >>> log_odds(torch.tensor([[0.0, 200.0]]), torch.tensor([1]))
    tensor([-200.])
    """
    return _others(logits, label).logsumexp(1) - _own(logits, label)


def margin(logits: Tensor, label: Tensor) -> Tensor:
    """(B,) largest other logit minus that of the label: above 0 where the model errs. Any number of classes ≥ 2.

    >>> margin(torch.tensor([[1.0, 3.0, 2.0]]), torch.tensor([1]))
    tensor([-1.])
    """
    return _others(logits, label).amax(1) - _own(logits, label)


def dlr(logits: Tensor, label: Tensor) -> Tensor:
    """(B,) difference-of-logits ratio (Croce & Hein, 2020): the margin over z_π1 − z_π3, so the scale does not matter.

    It needs a third class. With two, the ratio would be ±1 everywhere, and this is the plain margin.

    >>> dlr(torch.tensor([[10.0, 30.0, 20.0]]), torch.tensor([1]))
    tensor([-0.5000])
    """
    if logits.shape[1] < 3:
        return margin(logits, label)
    top = logits.topk(3, dim=1).values
    return margin(logits, label) / (top[:, 0] - top[:, 2] + 1e-12)


LOSSES: Mapping[str, Callable[[Tensor, Tensor], Tensor]] = {"ce": log_odds, "margin": margin, "dlr": dlr}


def _own(logits: Tensor, label: Tensor) -> Tensor:
    return logits.gather(1, label[:, None]).squeeze(1)


def _others(logits: Tensor, label: Tensor) -> Tensor:
    return logits.scatter(1, label[:, None], -torch.inf)
