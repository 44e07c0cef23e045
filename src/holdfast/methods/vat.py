"""Virtual adversarial training (Miyato et al., 2018)."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from holdfast.attacks.norms import unit
from holdfast.losses import cross_entropy
from holdfast.methods.base import Method
from holdfast.module_state import evaluating
from holdfast.rng import Generators
from holdfast.settings.methods import Vat
from holdfast.types import Batch, View, Views


class VatMethod(Method):
    """The second view is the neighbour whose prediction differs most, with the sample's own prediction as its label.

    Cross-entropy with a fixed prediction has the gradient of the divergence from it.
    """

    settings: Vat

    def views(self, batch: Batch, *, model: nn.Module, rng: Generators) -> Views:
        s = self.settings
        with evaluating(model):
            with torch.no_grad():
                prediction = model(batch.x).float().softmax(1)
            direction = torch.empty_like(batch.x).normal_(generator=rng["attack"])
            for _ in range(s.steps):
                direction = self._turned(model, batch.x, prediction, s.xi * unit(direction, "l2"))
        neighbour = (batch.x + s.radius * unit(direction, "l2")).clamp(0, 1)
        weight = batch.x.new_full((len(batch),), s.weight)
        return Views((View(batch.x, batch.y), View(neighbour, prediction, weight)))

    def _turned(self, model: nn.Module, x: Tensor, prediction: Tensor, probe: Tensor) -> Tensor:
        """The gradient of the divergence at a small probe: the curvature's product with it."""
        with torch.enable_grad():
            probe = probe.detach().requires_grad_()
            (slope,) = torch.autograd.grad(cross_entropy(model(x + probe), prediction).sum(), probe)
        return slope
