"""BiasAdv on ERM, JTT and LfF: Algorithms 1 to 3 of its supplement."""

from __future__ import annotations

from torch import nn

from holdfast.attacks.biasadv import bias_adversarial
from holdfast.attacks.eval_copies import EvalCopies
from holdfast.losses import generalized_cross_entropy
from holdfast.methods.base import Context, Method
from holdfast.methods.jtt import JttMethod
from holdfast.methods.lff import LffMethod
from holdfast.models.preprocessing import deviation
from holdfast.rng import Generators
from holdfast.settings.methods import ErmBiasAdv, JttBiasAdv, LffBiasAdv
from holdfast.settings.methods.bias import BiasAdv
from holdfast.types import Batch, View, Views


class ErmBiasAdvMethod(Method):
    """Algorithm 1: ERM has no biased model, so one is trained alongside with generalised cross-entropy."""

    settings: ErmBiasAdv

    def __init__(self, settings: ErmBiasAdv, context: Context) -> None:
        super().__init__(settings, context)
        self.biased = context.make_model()
        self.copies = EvalCopies()

    def views(self, batch: Batch, *, model: nn.Module, rng: Generators) -> Views:
        found = contradicting(self.settings, batch, model, self.biased, rng, self.copies)
        logits = self.biased(batch.x)
        own = generalized_cross_entropy(logits, batch.y, q=self.settings.q, scaled=self.settings.gce == "scaled")
        return Views((View(batch.x, batch.y), found), auxiliary_loss=own.mean())


class JttBiasAdvMethod(JttMethod):
    """Algorithm 2: the first model is the biased one, and stays as it is."""

    settings: JttBiasAdv

    def __init__(self, settings: JttBiasAdv, context: Context) -> None:
        super().__init__(settings, context)
        self.copies = EvalCopies()

    def views(self, batch: Batch, *, model: nn.Module, rng: Generators) -> Views:
        plain = super().views(batch, model=model, rng=rng)
        if self.first:
            return plain
        return Views((*plain.items, contradicting(self.settings, batch, model, self.biased, rng, self.copies)))


class LffBiasAdvMethod(LffMethod):
    """Algorithm 3: what is found counts by β(1 − ω), where the sample itself counts by ω."""

    settings: LffBiasAdv

    def __init__(self, settings: LffBiasAdv, context: Context) -> None:
        super().__init__(settings, context)
        self.copies = EvalCopies()

    def neighbours(self, batch: Batch, *, model: nn.Module, rng: Generators) -> tuple[View, ...]:
        return (contradicting(self.settings, batch, model, self.biased, rng, self.copies),)


def contradicting(
    settings: BiasAdv, batch: Batch, model: nn.Module, biased: nn.Module, rng: Generators, copies: EvalCopies
) -> View:
    """Neighbours of a batch that fool the biased model and not the other, with weight β."""
    pair = (model, biased)
    if settings.statistics == "running":
        pair = (copies.of(model, batch.x.device), copies.of(biased, batch.x.device))
    found = bias_adversarial(
        batch.x,
        batch.y,
        *pair,
        radius=settings.radius,
        lam=settings.lam,
        steps=settings.steps,
        norm=settings.norm,
        step_size=settings.step_size,
        space=settings.space,
        scale=deviation(model) if settings.space == "normalised" else None,
        random_start=settings.random_start,
        mode="eval" if settings.statistics == "running" else "as-is",
        compile=hasattr(model, "_orig_mod"),
        generator=rng["attack"],
    )
    weight = batch.x.new_full((len(batch),), settings.beta)
    return View(found, batch.y, weight, traceless=settings.running == "clean")
