"""Re-weighting: classes, or groups within classes, count the same whatever their size."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from holdfast.methods.base import Context, Method
from holdfast.methods.groups import cells
from holdfast.rng import Generators
from holdfast.settings.methods import Reweight
from holdfast.types import Batch, View, Views


class ReweightMethod(Method):
    settings: Reweight
    weight: Tensor

    def __init__(self, settings: Reweight, context: Context) -> None:
        super().__init__(settings, context)
        cell = cells(context, by=settings.by, method="reweight")
        counts = torch.bincount(cell)
        weight = len(cell) / ((counts > 0).sum() * counts[cell])
        self.register_buffer("weight", weight.float(), persistent=False)

    def views(self, batch: Batch, *, model: nn.Module, rng: Generators) -> Views:
        return Views((View(batch.x, batch.y, self.weight[batch.index]),))
