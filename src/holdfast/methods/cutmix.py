"""CutMix: a box of another image pasted in (Yun et al., 2019)."""

from __future__ import annotations

from torch import nn

from holdfast.augment.mixing import cut
from holdfast.methods.mixup import MixupMethod
from holdfast.rng import Generators
from holdfast.types import Batch, View, Views


class CutMixMethod(MixupMethod):
    def views(self, batch: Batch, *, model: nn.Module, rng: Generators) -> Views:
        partner, lam = self.draw(batch, rng)
        images, share = cut(batch.x, batch.x[partner], lam, generator=rng["mix"])
        return Views((View(images, self.labels(batch.y, partner, share)),))
