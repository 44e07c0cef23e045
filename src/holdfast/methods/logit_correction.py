"""Logit Correction (Liu et al., ICLR 2023): logits corrected by how often a class and a shortcut's attribute meet.

A biased model g, trained with generalised cross-entropy, guesses the attribute a of each image. The model f learns
cross-entropy of f(x) + log P(y, a), so that f itself serves data in which every pair of y and a is equally frequent.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Annotated

from holdfast.methods import Batch, View, Views, method
from holdfast.methods.lff import BiasedTraining
from holdfast.settings import Within

if TYPE_CHECKING:
    from torch import Tensor, nn

    from holdfast.methods import Context, Generators, State

FLOOR = 1e-4
"""Added to P(y, a) before its logarithm: a pair that was never seen must not make the correction infinite."""


@method(
    "logit-correction",
    about="Logit Correction: logits corrected by how often a class meets what a biased model sees; Group MixUp.",
    passes=2,
    order=11,
)
class LogitCorrection(BiasedTraining):
    memory: Annotated[float, Within(0, 1, "[)")] = 0.9
    """Share of P(y, a) that a step keeps; the batch gives the rest."""
    eta: Annotated[float, Within(0)] = 1.0
    """Strength of the correction, η·log P(y, a); 0 leaves the logits uncorrected."""
    mix: Annotated[float, Within(0, 0.5, "[]")] = 0.5
    """τ of Group MixUp at its largest: the share λ that an image keeps is drawn from [1 − 2τ, 1 − τ]; 0 mixes none."""
    ramp: Annotated[float, Within(0, 1, "[]")] = 0.5
    """Share of the training over which τ rises from 0."""

    def start(self, context: Context) -> State:
        import torch

        state, k = super().start(context), context.num_classes
        state.register_buffer("joint", torch.full((k, k), 1 / k**2))  # P(y, a), rows y
        state.register_buffer("shown", torch.zeros((), dtype=torch.float64))
        return state

    def begin(self, state: State, predict: Callable[[nn.Module], Tensor]) -> str | None:
        return self.caution(state)

    def views(self, batch: Batch, *, model: nn.Module, state: State, rng: Generators) -> Views:
        import torch

        from holdfast.augment.mixing import mix, one_hot

        g, x, y = state.biased, batch.x, batch.y
        logits_g = g(x)
        p = logits_g.detach().float().softmax(1)
        a = p.argmax(1)
        seen = one_hot(y, p.shape[1]).T @ p / len(y)  # P(y, a) in the batch
        state.joint.lerp_(seen.to(state.joint.dtype), 1 - self.memory)
        prior = state.joint.T[a]  # (B, K): P(·, a) of each image
        if self.mix:
            partner = group_partners(y, a, generator=rng["mix"])
            tau = self.mix * self._risen(state, len(y))
            lam = 1 - 2 * tau + tau * torch.rand((), device=x.device, generator=rng["mix"])
            lam = lam.to(prior.dtype).expand(len(y))
            x, prior = mix(x, x[partner], lam.to(x.dtype)), mix(prior, prior[partner], lam)
        correction = self.eta * (prior + FLOOR).log()
        return Views((View(x, y),), self.biased_loss(logits_g, y), extra={"correction": correction})

    def _risen(self, state: State, count: int) -> Tensor:
        """How far τ has risen: exp(−5(1 − t)²) at the share t of the ramp that is over, as is usual for ramps."""
        import torch

        whole = self.ramp * len(state.context.labels) * state.context.epochs
        t = (state.shown / whole).clamp(max=1) if whole else torch.ones_like(state.shown)
        risen = (-5 * (1 - t).square()).exp() if self.ramp else t
        state.shown += count
        return risen.float()

    def loss(self, logits: tuple[Tensor, ...], views: Views) -> Tensor:
        """The mean cross-entropy of the corrected logits."""
        from holdfast.losses import cross_entropy

        return cross_entropy(logits[0].float() + views.extra["correction"], views.items[0].label).mean()


def group_partners(y: Tensor, a: Tensor, *, generator: object) -> Tensor:
    """(B,) for each image one of its class in the batch whose attribute differs from the class (a minority group).

    Any of the class where the batch has no such image. y, a: (B,) class and attribute. Nothing here waits for the
    device.
    """
    import torch

    same = y[:, None] == y
    minority = same & (a != y)
    allowed = torch.where(minority.any(1, keepdim=True), minority, same)
    drawn = torch.rand(allowed.shape, device=y.device, generator=generator)  # type: ignore[call-overload]
    chosen: Tensor = torch.where(allowed, drawn, -1.0).argmax(1)
    return chosen
