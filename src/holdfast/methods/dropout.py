"""Dropout on the penultimate layer."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch.nn.functional as F
from torch import Tensor, nn

from holdfast.methods.base import Method
from holdfast.models.heads import find_head
from holdfast.settings.methods import Dropout


class DropoutMethod(Method):
    """The network itself is not changed: a hook drops features on their way into the head, in training alone."""

    settings: Dropout

    @contextmanager
    def attached(self, model: nn.Module) -> Iterator[None]:
        handle = find_head(model)[1].register_forward_pre_hook(self._drop)
        try:
            yield
        finally:
            handle.remove()

    def _drop(self, head: nn.Module, inputs: tuple[Any, ...]) -> tuple[Tensor, ...]:
        features, *rest = inputs
        return (F.dropout(features, self.settings.p, training=head.training), *rest)
