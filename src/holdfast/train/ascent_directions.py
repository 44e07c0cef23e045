"""Whose gradient a step climbs before it descends (F-SAM supplement, A5).

Each function leaves the direction of the ascent in the gradients of the parameters, and returns the batch's own loss
and logits at the unmoved weights where it computed them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from holdfast.module_state import frozen_statistics
from holdfast.optim import trained_parameters
from holdfast.types import Batch

if TYPE_CHECKING:
    from holdfast.train.step import Drawn, Step

Seen = tuple[Tensor, Tensor]


def along_batch(step: Step, drawn: Drawn, others: Sequence[Batch]) -> Seen:
    """The batch's own gradient: SAM and its family."""
    return step.gradients(drawn)


def along_other_batch(step: Step, drawn: Drawn, others: Sequence[Batch]) -> None:
    """The gradient of another random batch: SAM-db."""
    (other,) = others
    with frozen_statistics(step.model), frozen_statistics(step.method):
        step.gradients(step.draw(other, augment=True))


def along_large_batch(step: Step, drawn: Drawn, others: Sequence[Batch]) -> Seen:
    """The gradient of the batch and of others, as large as it, together (figure A1)."""
    seen = step.gradients(drawn)
    with frozen_statistics(step.model), frozen_statistics(step.method):
        for other in others:
            step.add_gradients(step.draw(other, augment=True))
    for p in trained_parameters(step.optimizer):
        if p.grad is not None:
            p.grad /= 1 + len(others)
    return seen


def along_full(step: Step, drawn: Drawn, others: Sequence[Batch]) -> None:
    """The gradient of the whole training set: SAM-full."""
    step.full_gradient()


def along_noise(step: Step, drawn: Drawn, others: Sequence[Batch]) -> Seen:
    """The batch's gradient without its part along the full one: SAM-noise."""
    seen = step.gradients(drawn)
    params = [p for p in trained_parameters(step.optimizer) if p.grad is not None]
    own = [p.grad for p in params if p.grad is not None]
    step.full_gradient()
    full = [torch.zeros_like(p) if p.grad is None else p.grad for p in params]
    for p, direction in zip(params, without_projection(own, full), strict=True):
        p.grad = direction
    return seen


@torch.no_grad()
def without_projection(gradient: Sequence[Tensor], full: Sequence[Tensor]) -> list[Tensor]:
    """g − (g·G / G·G) G, with all tensors together as one vector.

    >>> without_projection([torch.tensor([3.0, 4.0])], [torch.tensor([2.0, 0.0])])
    [tensor([0., 4.])]
    """
    share = inner(gradient, full) / inner(full, full).clamp_min(torch.finfo(full[0].dtype).tiny)
    return [g - share * f for g, f in zip(gradient, full, strict=True)]


def inner(a: Sequence[Tensor], b: Sequence[Tensor]) -> Tensor:
    """Inner product, with all tensors together as one vector."""
    return torch.stack([(x * y).sum() for x, y in zip(a, b, strict=True)]).sum()


DIRECTIONS: dict[str, Callable[[Step, Drawn, Sequence[Batch]], Seen | None]] = {
    "batch": along_batch,
    "other-batch": along_other_batch,
    "large-batch": along_large_batch,
    "full": along_full,
    "noise": along_noise,
}
