"""Methods outside a training, on data of the test's own."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from holdfast.methods import Context, Method
from holdfast.rng import Generators
from holdfast.settings import MethodSettings
from holdfast.types import Batch

CPU = torch.device("cpu")


def make_method(
    labels: Tensor,
    groups: Tensor | None = None,
    *,
    classes: int = 3,
    make_model: Callable[[], nn.Module] = nn.Identity,
    epochs: int = 4,
    **settings: Any,
) -> Method:
    chosen = MethodSettings.choose(settings)
    groups = torch.full_like(labels, -1) if groups is None else groups
    method: Method = chosen.load()(chosen, Context(classes, labels, groups, epochs, make_model))
    return method


def make_batch(x: Tensor, y: Tensor) -> Batch:
    return Batch(torch.arange(len(y)), x, y, torch.full_like(y, -1))


def draws(seed: int = 0) -> Generators:
    return Generators(seed, CPU)
