"""ALPS: adversarial labels of perturbed samples (theorem 1 and eq. 14 of the paper)."""

from __future__ import annotations

from torch import Tensor, nn

from holdfast.augment.mixing import adversarial_labels, beta_of, draw_beta, mix, shuffled
from holdfast.losses import cross_entropy
from holdfast.methods.base import Method
from holdfast.rng import Generators
from holdfast.settings.methods import Alps
from holdfast.types import Batch, View, Views


class AlpsMethod(Method):
    """Images mixed towards another sample, each with the worst label in an L1 ball around its own.

    The worst label follows from the logits of the same forward pass, so a step costs what a plain one does; at moved
    weights it is the worst label there.
    """

    settings: Alps

    def views(self, batch: Batch, *, model: nn.Module, rng: Generators) -> Views:
        s, n, device = self.settings, len(batch), batch.x.device
        shape = beta_of(s.mode, s.concentration) if s.alpha is None or s.beta is None else (s.alpha, s.beta)
        partner = shuffled(n, generator=rng["mix"], device=device)
        lam = draw_beta(*shape, n, generator=rng["mix"], device=device)
        return Views((View(mix(batch.x, batch.x[partner], lam), batch.y),))

    def loss(self, model: nn.Module, views: Views) -> tuple[Tensor, Tensor]:
        (view,) = views.items
        logits = model(view.x)
        label = adversarial_labels(logits, view.label, epsilon=self.settings.epsilon)
        return cross_entropy(logits, label).mean(), logits
