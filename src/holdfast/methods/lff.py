"""LfF: learning from failure (Nam et al., 2020; Algorithm 3 of BiasAdv's supplement without its blue lines).

A biased model g learns what is easy alongside the model f that is wanted; a sample counts by how much harder it is for
g. Both models see the batch once: g's losses serve its own training and the weights, and so do f's.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Annotated, ClassVar, Literal

from holdfast.methods import Batch, Method, View, Views, method
from holdfast.settings import Within

if TYPE_CHECKING:
    from torch import Tensor, nn

    from holdfast.methods import Context, Generators, State


@dataclass(frozen=True)
class BiasedTraining(Method):
    """How a biased model is trained that leans on what is easy. Mixed into the settings of a method that has one."""

    q: Annotated[float, Within(0, 1, "(]")] = 0.7
    """Generalised cross-entropy: 0 is cross-entropy, 1 the error rate."""
    gce: Literal["textbook", "scaled"] = "scaled"
    """The loss as published, or as the authors of LfF code it: its gradient is q times as long."""

    def start(self, context: Context) -> State:
        state = super().start(context)
        state.biased = context.make_model()
        return state

    def passes(self, state: State) -> tuple[float, float]:
        return 1.0, 1.0

    def caution(self, state: State) -> str | None:
        """Where no groups show that there is a shortcut: that one is needed, and how to look for it."""
        if state.context.searching or bool((state.context.groups >= 0).any()):
            return None
        why = f"{self.name} is for data with a shortcut and lowers accuracy where there is none"
        unseen = "this data has no groups that would show one"
        return f"{why}; {unseen}: if you have not yet, look with holdfast shortcuts --data DATA"

    def biased_loss(self, logits: Tensor, y: Tensor) -> Tensor:
        """The mean generalised cross-entropy of g."""
        from holdfast.losses import generalized_cross_entropy

        return generalized_cross_entropy(logits, y, q=self.q, scaled=self.gce == "scaled").mean()


@method(
    "lff",
    aliases=("learning-from-failure",),
    about="LfF: samples weighted by how much harder they are for a biased model trained alongside.",
    passes=2,
    order=10,
)
class Lff(BiasedTraining):
    images_alone: ClassVar[bool] = True
    difficulty: Literal["averaged", "raw"] = "averaged"
    """Losses averaged over visits and divided by the largest of the class, as the authors code it; or raw ones."""
    ema: Annotated[float, Within(0, 1, "[)")] = 0.7
    """averaged: memory of a sample's losses."""

    def start(self, context: Context) -> State:
        import torch

        state = super().start(context)
        if self.difficulty == "averaged":
            n = len(context.labels)
            state.register_buffer("labels", context.labels.clone(), persistent=False)
            state.register_buffer("biased_average", torch.full((n,), torch.nan))
            state.register_buffer("average", torch.full((n,), torch.nan))
        return state

    def begin(self, state: State, predict: Callable[[nn.Module], Tensor]) -> str | None:
        return self.caution(state)

    def views(self, batch: Batch, *, model: nn.Module, state: State, rng: Generators) -> Views:
        from holdfast.losses import cross_entropy

        g, x, y = state.biased, batch.x, batch.y
        logits_g = g(x)
        loss_g = cross_entropy(logits_g.detach(), y)
        sample = View(x, y)

        def weigh(logits_f: Tensor) -> Views:
            w = self.relative_difficulty(batch, loss_g=loss_g, loss_f=cross_entropy(logits_f, y), state=state)
            return Views((replace(sample, weight=w),))

        return Views((sample,), auxiliary_loss=self.biased_loss(logits_g, y), weigh=weigh)

    def relative_difficulty(self, batch: Batch, *, loss_g: Tensor, loss_f: Tensor, state: State) -> Tensor:
        """(B,) w = L(g) / (L(g) + L(f)): near 1 where only the biased model fails."""
        import torch

        if self.difficulty == "raw":
            return loss_g / (loss_g + loss_f).clamp_min(torch.finfo(loss_f.dtype).tiny)
        loss_g = self._averaged(state.biased_average, batch, loss_g, state)
        loss_f = self._averaged(state.average, batch, loss_f, state)
        return loss_g / (loss_g + loss_f + 1e-8)

    def _averaged(self, average: Tensor, batch: Batch, losses: Tensor, state: State) -> Tensor:
        """Put losses into the averages of their samples; those averages over the largest of each class."""
        import torch

        old = average[batch.index]
        new = torch.where(old.isnan(), losses, old.lerp(losses.to(old.dtype), 1 - self.ema))
        average.index_copy_(0, batch.index, new.to(average.dtype))
        largest = average.new_zeros(state.context.num_classes)
        largest.scatter_reduce_(0, state.labels, average.nan_to_num(0.0), "amax")
        return new / largest[batch.y].clamp_min(torch.finfo(average.dtype).tiny)
