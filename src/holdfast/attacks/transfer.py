"""Transfer: attack a model without access to it, by images made against another."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import ExitStack
from typing import Any

import torch
from torch import Tensor

from holdfast.attacks.common import Model, borrowed
from holdfast.attacks.pgd import pgd
from holdfast.errors import require


def transfer(
    surrogate: Model | Sequence[Model],
    x: Tensor,
    y: Tensor,
    *,
    radius: float,
    attack: Callable[..., Tensor] = pgd,
    **settings: Any,
) -> Tensor:
    """Images made against the surrogate, to be shown to another model.

    surrogate: one model, or several that are attacked together through the mean of their log-probabilities.
    attack: ``pgd``, ``fgsm`` or ``apgd``; settings: its other arguments.
    """
    models = [surrogate] if callable(surrogate) else list(surrogate)
    require(len(models) > 0, "transfer needs at least one surrogate, got none")
    if len(models) == 1:
        return attack(models[0], x, y, radius=radius, **settings)
    mode = settings.pop("mode", "eval")

    def together(images: Tensor) -> Tensor:
        return torch.stack([model(images).float().log_softmax(1) for model in models]).mean(0)

    with ExitStack() as stack:
        for model in models:
            stack.enter_context(borrowed(model, mode))
        return attack(together, x, y, radius=radius, **settings)
