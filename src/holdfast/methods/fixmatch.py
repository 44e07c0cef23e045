"""FixMatch: where the model is sure of an image without a label, it must say the same of a strongly changed copy."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from holdfast.augment.basic import strong, to_float, weak
from holdfast.losses import cross_entropy
from holdfast.methods.base import Context, Method
from holdfast.module_state import frozen_statistics
from holdfast.rng import Generators
from holdfast.settings.methods import FixMatch
from holdfast.types import Batch, View, Views


class FixMatchMethod(Method):
    """Guesses are made once a step, at the weights the step begins with; an ascent does not change them."""

    settings: FixMatch
    others: Tensor | None

    def __init__(self, settings: FixMatch, context: Context) -> None:
        super().__init__(settings, context)
        self.register_buffer("others", context.unlabeled, persistent=False)

    def views(self, batch: Batch, *, model: nn.Module, rng: Generators) -> Views:
        s, draw = self.settings, rng["method"]
        plain = batch.x if self.others is None else self._drawn(self.others, s.ratio * len(batch), draw)
        with torch.no_grad(), frozen_statistics(model):
            confidence, guess = model(weak(plain, draw, flip=s.flip)).float().softmax(1).max(1)
        weight = s.weight * (confidence >= s.confidence).float()
        return Views((View(batch.x, batch.y), View(strong(plain, draw, flip=s.flip), guess, weight)))

    def loss(self, model: nn.Module, views: Views) -> tuple[Tensor, Tensor]:
        """One forward pass for both kinds of images, so that BatchNorm sees them together."""
        known, guessed = views.items
        assert guessed.weight is not None
        out = model(torch.cat([known.x, guessed.x]))
        first, second = out[: len(known.x)], out[len(known.x) :]
        consistent = (cross_entropy(second, guessed.label) * guessed.weight).mean()
        return cross_entropy(first, known.label).mean() + consistent, first

    @staticmethod
    def _drawn(others: Tensor, count: int, draw: torch.Generator) -> Tensor:
        return to_float(others[torch.randint(len(others), (count,), device=others.device, generator=draw)])
