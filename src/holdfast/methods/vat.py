"""Virtual adversarial training (Miyato et al., 2018)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, ClassVar

from holdfast.methods import Batch, Method, View, Views, method
from holdfast.settings import Within

if TYPE_CHECKING:
    from torch import nn

    from holdfast.methods import Generators, State


@method(
    "vat",
    aliases=("virtual-adversarial-training",),
    about="Virtual adversarial training: predictions that do not change in the direction in which they change most.",
    passes=3.3,
)
class Vat(Method):
    images_alone: ClassVar[bool] = True
    radius: Annotated[float, Within(0)] = 1.0
    """L2 length of the perturbation, in pixels."""
    weight: Annotated[float, Within(0)] = 1.0
    """Weight of the smoothness term."""
    steps: Annotated[int, Within(1)] = 1
    """Power iterations that look for the direction."""
    xi: Annotated[float, Within(0, ends="(]")] = 1e-2
    """Length at which the direction is probed."""

    def passes(self, state: State) -> tuple[float, float]:
        return 2.0, self.steps + 1 / 3

    def views(self, batch: Batch, *, model: nn.Module, state: State, rng: Generators) -> Views:
        """The second view is the neighbour whose prediction differs most, with the sample's own prediction as label.

        Cross-entropy with a fixed prediction has the gradient of the divergence from it.
        """
        import torch

        from holdfast.attacks.norms import unit
        from holdfast.losses import cross_entropy
        from holdfast.module_state import evaluating

        with evaluating(model):
            with torch.no_grad():
                prediction = model(batch.x).float().softmax(1)
            direction = torch.empty_like(batch.x).normal_(generator=rng["attack"])
            for _ in range(self.steps):  # the gradient at a small probe is the curvature's product with it
                with torch.enable_grad():
                    probe = (self.xi * unit(direction, "l2")).detach().requires_grad_()
                    divergence = cross_entropy(model(batch.x + probe), prediction).sum()
                (direction,) = torch.autograd.grad(divergence, probe)
        neighbour = (batch.x + self.radius * unit(direction, "l2")).clamp(0, 1)
        weight = batch.x.new_full((len(batch),), self.weight)
        return Views((View(batch.x, batch.y), View(neighbour, prediction, weight)))
