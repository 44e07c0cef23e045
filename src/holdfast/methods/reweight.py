"""Re-weighting: classes, or groups within classes, count the same whatever their size."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar, Literal

from holdfast.methods import Batch, Method, View, Views, method

if TYPE_CHECKING:
    from torch import nn

    from holdfast.methods import Context, Generators, State


@method(
    "reweight",
    aliases=("reweighting",),
    about="Re-weighting: every class, or every group of every class, counts the same.",
)
class Reweight(Method):
    images_alone: ClassVar[bool] = True
    by: Literal["class", "group"] = "class"
    """What shall count the same; groups need group labels."""

    def start(self, context: Context) -> State:
        import torch

        state = super().start(context)
        cell = context.cells(by=self.by, method="reweight")
        counts = torch.bincount(cell)
        weight = len(cell) / ((counts > 0).sum() * counts[cell])
        state.register_buffer("weight", weight.float(), persistent=False)
        return state

    def views(self, batch: Batch, *, model: nn.Module, state: State, rng: Generators) -> Views:
        return Views((View(batch.x, batch.y, state.weight[batch.index]),))
