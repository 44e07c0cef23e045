"""LfF: learning from failure (Nam et al., 2020; Algorithm 3 of BiasAdv's supplement without its blue lines)."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from holdfast.losses import cross_entropy, generalized_cross_entropy
from holdfast.methods.base import Context, Method, show
from holdfast.rng import Generators
from holdfast.settings.methods import Lff
from holdfast.types import Batch, View, Views


class LffMethod(Method):
    """A biased model learns what is easy alongside; a sample counts by how much harder it is for that model.

    Both models see the batch once: the biased model's losses serve its own training and the weights, and the main
    model's losses are those of its training pass.
    """

    settings: Lff
    labels: Tensor
    biased_average: Tensor
    average: Tensor

    def __init__(self, settings: Lff, context: Context) -> None:
        super().__init__(settings, context)
        self.biased = context.make_model()
        if settings.difficulty == "averaged":
            n = len(context.labels)
            self.register_buffer("labels", context.labels.clone(), persistent=False)
            self.register_buffer("biased_average", torch.full((n,), torch.nan))
            self.register_buffer("average", torch.full((n,), torch.nan))

    def views(self, batch: Batch, *, model: nn.Module, rng: Generators) -> Views:
        items = (View(batch.x, batch.y), *self.neighbours(batch, model=model, rng=rng))
        logits = self.biased(batch.x)  # after the attack, which must not see statistics of this batch
        hard = cross_entropy(logits.detach(), batch.y)
        own = generalized_cross_entropy(logits, batch.y, q=self.settings.q, scaled=self.settings.gce == "scaled")
        return Views(items, auxiliary_loss=own.mean(), memo={"biased_loss": hard, "index": batch.index})

    def neighbours(self, batch: Batch, *, model: nn.Module, rng: Generators) -> tuple[View, ...]:
        """Further views; each counts by how far its sample follows the shortcut."""
        return ()

    def loss(self, model: nn.Module, views: Views) -> tuple[Tensor, Tensor]:
        sample, *neighbours = views.items
        logits = model(sample.x)
        losses = cross_entropy(logits, sample.label)
        if "weight" not in views.memo:
            views.memo["weight"] = self._weight(views.memo, losses.detach(), sample.label)
        weight = views.memo["weight"]
        total = (weight * losses).mean()
        for view in neighbours:
            assert view.weight is not None
            total = total + (view.weight * (1 - weight) * cross_entropy(show(model, view), view.label)).mean()
        return total, logits

    def _weight(self, memo: dict[str, Tensor], losses: Tensor, y: Tensor) -> Tensor:
        """(B,) relative difficulty: near 1 where only the biased model fails."""
        biased = memo["biased_loss"]
        if self.settings.difficulty == "raw":
            return biased / (biased + losses).clamp_min(torch.finfo(losses.dtype).tiny)
        index = memo["index"]
        biased = self._averaged(self.biased_average, index, biased, y)
        losses = self._averaged(self.average, index, losses, y)
        return biased / (biased + losses + 1e-8)

    def _averaged(self, average: Tensor, index: Tensor, losses: Tensor, y: Tensor) -> Tensor:
        """Put losses into the averages of their samples; those averages over the largest of each class."""
        old = average[index]
        new = torch.where(old.isnan(), losses, old.lerp(losses.to(old.dtype), 1 - self.settings.ema))
        average.index_copy_(0, index, new.to(average.dtype))
        largest = average.new_zeros(self.context.num_classes)
        largest.scatter_reduce_(0, self.labels, average.nan_to_num(0.0), "amax")
        return new / largest[y].clamp_min(torch.finfo(average.dtype).tiny)
