"""MixUp: train between two samples (Zhang et al., 2018)."""

from __future__ import annotations

from torch import Tensor, nn

from holdfast.augment.mixing import draw_beta, mix, one_hot, shuffled
from holdfast.methods.base import Method
from holdfast.rng import Generators
from holdfast.settings.methods import Mixup
from holdfast.types import Batch, View, Views


class MixupMethod(Method):
    settings: Mixup

    def views(self, batch: Batch, *, model: nn.Module, rng: Generators) -> Views:
        partner, lam = self.draw(batch, rng)
        return Views((View(mix(batch.x, batch.x[partner], lam), self.labels(batch.y, partner, lam)),))

    def draw(self, batch: Batch, rng: Generators) -> tuple[Tensor, Tensor]:
        """(B,) a partner for each sample and (B,) its own share."""
        n, device, alpha = len(batch), batch.x.device, self.settings.alpha
        partner = shuffled(n, generator=rng["mix"], device=device)
        lam = draw_beta(alpha, alpha, n if self.settings.per_sample else 1, generator=rng["mix"], device=device)
        return partner, lam.expand(n)

    def labels(self, y: Tensor, partner: Tensor, lam: Tensor) -> Tensor:
        hot = one_hot(y, self.context.num_classes)
        return mix(hot, hot[partner], lam)
