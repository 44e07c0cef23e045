"""Adversarial training (Madry et al., 2018)."""

from __future__ import annotations

from torch import nn

from holdfast.attacks import pgd
from holdfast.methods.base import Method
from holdfast.rng import Generators
from holdfast.settings.methods import Adversarial
from holdfast.types import Batch, View, Views


class AdversarialMethod(Method):
    settings: Adversarial

    def views(self, batch: Batch, *, model: nn.Module, rng: Generators) -> Views:
        s = self.settings
        found = pgd(
            model,
            batch.x,
            batch.y,
            radius=s.radius,
            steps=s.steps,
            step_size=s.step_size,
            norm=s.norm,
            random_start=s.random_start,
            keep="last",
            generator=rng["attack"],
        )
        attacked = View(found, batch.y)
        if not s.clean:
            return Views((attacked,))
        weight = batch.x.new_full((len(batch),), s.clean)
        return Views((View(batch.x, batch.y, weight), attacked))
