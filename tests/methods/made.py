"""Methods outside a training, on data of the test's own."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from holdfast.methods import Context, Method, State
from holdfast.rng import Generators
from holdfast.settings import MethodSettings
from holdfast.types import Batch, Views

CPU = torch.device("cpu")


def make_method(
    labels: Tensor,
    groups: Tensor | None = None,
    *,
    classes: int = 3,
    make_model: Callable[[], nn.Module] = nn.Identity,
    epochs: int = 4,
    **settings: Any,
) -> tuple[Method, State]:
    chosen = MethodSettings.choose(settings)
    groups = torch.full_like(labels, -1) if groups is None else groups
    assert isinstance(chosen, Method)
    state = chosen.start(Context(classes, labels, groups, epochs, make_model))
    state.stage = chosen.stages(epochs)[-1]
    return chosen, state


def evaluate(method: Method, model: nn.Module, views: Views, state: State) -> tuple[Tensor, Tensor, Views]:
    """(loss, logits of the first view, weighed views), as a step computes them."""
    logits = method.forward(model, views, state=state)
    views = views if views.weigh is None else views.weigh(logits[0].detach())
    return method.loss(logits, views), logits[0], views


def make_batch(x: Tensor, y: Tensor) -> Batch:
    return Batch(torch.arange(len(y)), x, y, torch.full_like(y, -1))


def draws(seed: int = 0) -> Generators:
    return Generators(seed, CPU)
