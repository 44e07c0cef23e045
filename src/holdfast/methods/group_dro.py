"""Group DRO (Sagawa et al., 2020): for those who do have group labels."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from holdfast.losses import cross_entropy
from holdfast.methods.base import Context, Method
from holdfast.methods.groups import cells
from holdfast.rng import Generators
from holdfast.settings.methods import GroupDro
from holdfast.types import Batch, View, Views


class GroupDroMethod(Method):
    """Each cell of class and group has a weight that grows with its loss; the loss is the weighted sum of cells."""

    settings: GroupDro
    cell: Tensor
    shares: Tensor

    def __init__(self, settings: GroupDro, context: Context) -> None:
        super().__init__(settings, context)
        self.register_buffer("cell", cells(context, by="group", method="group-dro"), persistent=False)
        count = int(self.cell.max()) + 1
        self.register_buffer("shares", torch.full((count,), 1 / count))

    def views(self, batch: Batch, *, model: nn.Module, rng: Generators) -> Views:
        return Views((View(batch.x, batch.y),), memo={"cell": self.cell[batch.index]})

    def loss(self, model: nn.Module, views: Views) -> tuple[Tensor, Tensor]:
        (view,) = views.items
        logits = model(view.x)
        losses, cell = cross_entropy(logits, view.label), views.memo["cell"]
        sums = losses.new_zeros(len(self.shares)).index_add(0, cell, losses)
        counts = losses.new_zeros(len(self.shares)).index_add(0, cell, torch.ones_like(losses))
        means = sums / counts.clamp_min(1)
        if "shares" not in views.memo:
            grown = self.shares * (self.settings.rate * means.detach()).exp()
            self.shares.copy_(grown / grown.sum())
            views.memo["shares"] = self.shares.clone()
        return (views.memo["shares"] * means).sum(), logits
