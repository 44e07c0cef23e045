"""Group DRO (Sagawa et al., 2020): for those who do have group labels."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, ClassVar

from holdfast.methods import Batch, Method, View, Views, method
from holdfast.settings import Within
from holdfast.types import Needs

if TYPE_CHECKING:
    from torch import Tensor, nn

    from holdfast.methods import Context, Generators, State


@method("group-dro", about="Group DRO: weigh the groups by how badly they do. Needs group labels.", needs=Needs.GROUPS)
class GroupDro(Method):
    images_alone: ClassVar[bool] = True
    rate: Annotated[float, Within(0)] = 0.01
    """How fast the weight of a group follows its loss."""

    def start(self, context: Context) -> State:
        import torch

        state = super().start(context)
        state.register_buffer("cell", context.cells(by="group", method="group-dro"), persistent=False)
        count = int(state.cell.max()) + 1
        state.register_buffer("shares", torch.full((count,), 1 / count))
        return state

    def views(self, batch: Batch, *, model: nn.Module, state: State, rng: Generators) -> Views:
        items, cell = (View(batch.x, batch.y),), state.cell[batch.index]

        def weigh(logits: Tensor) -> Views:
            """Each cell of class and group has a share that grows with its loss."""
            grown = state.shares * (self.rate * cell_means(logits, batch.y, cell, len(state.shares))).exp()
            state.shares.copy_(grown / grown.sum())
            return Views(items, extra={"cell": cell, "shares": state.shares.clone()})

        return Views(items, weigh=weigh)

    def loss(self, logits: tuple[Tensor, ...], views: Views) -> Tensor:
        """The sum of the cells' mean losses, each by its share."""
        shares, view = views.extra["shares"], views.items[0]
        return (shares * cell_means(logits[0], view.label, views.extra["cell"], len(shares), view.weight)).sum()


def cell_means(logits: Tensor, y: Tensor, cell: Tensor, count: int, weight: Tensor | None = None) -> Tensor:
    """(count,) the mean (weighted) cross-entropy of the samples of each cell; 0 where there are none."""
    import torch

    from holdfast.losses import cross_entropy

    losses = cross_entropy(logits, y) * (1 if weight is None else weight)
    sums = losses.new_zeros(count).index_add(0, cell, losses)
    counts = losses.new_zeros(count).index_add(0, cell, torch.ones_like(losses))
    return sums / counts.clamp_min(1)
