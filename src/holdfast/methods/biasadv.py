"""BiasAdv (Lim et al., 2023) on ERM, JTT and LfF: Algorithms 1 to 3 of its supplement, with their line numbers.

f: the model that is trained, g: the biased model, S: the batch (x, y). Each algorithm adds images x_adv that g gets
wrong and f does not, so that they are bias-conflicting: they go against the correlation that g has learned.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Annotated, ClassVar, Literal

from holdfast.errors import require
from holdfast.methods import Batch, Method, View, Views, method
from holdfast.methods.jtt import Jtt
from holdfast.methods.lff import BiasedTraining, Lff
from holdfast.settings import Unset, Within

if TYPE_CHECKING:
    from torch import Tensor, nn

    from holdfast.attacks.norms import BallSettings
    from holdfast.methods import Context, Generators, State


@dataclass(frozen=True)
class BiasAdv(Method):
    """How to search for bias-conflicting images. Mixed into the settings of a base method."""

    lam: Annotated[float, Within(0)] = 0.5
    """λ: how much the attack spares the model that is trained."""
    radius: Annotated[float, Within(0)] = 0.5
    """Size of the perturbation, in the norm and the space below."""
    steps: Annotated[int, Within(1)] = 5
    """Attack steps."""
    beta: Annotated[float, Within(0)] = 1.0
    """Weight of the images found."""
    norm: Literal["l2", "linf"] = "l2"
    """Of the ball around a sample."""
    space: Literal["pixel", "normalised"] = "pixel"
    """Whether the radius is in pixels of [0, 1] or in units of the deviation that the model divides by."""
    step_size: Annotated[Unset[float], Within(0, ends="(]")] = None
    """Length of a step (default: 2.5 radius / steps, at most the radius)."""
    random_start: bool = False
    """Begin at a random point of the ball, not at the sample."""
    statistics: Literal["running", "batch"] = "running"
    """What BatchNorm uses during the attack: its running statistics, or those of the batch."""
    running: Literal["all", "clean"] = "all"
    """Which images BatchNorm's running statistics follow: also those found, or the clean ones alone."""
    batch_norm: Literal["shared", "auxiliary"] = "shared"
    """Whether the images found go through the model's BatchNorm layers, or through a second set with weights and
    statistics of its own, as in the paper's main text; the model that is kept has the first."""
    attack_batch_norm: Literal["main", "auxiliary"] = "main"
    """Which of two sets of BatchNorm layers the attack goes through: the model's, or that of the images found, as
    AdvProp does."""
    perturbation: Literal["biased", "model", "noise"] = "biased"
    """What the images are made against: the biased model; or, as controls, the model itself (AdvProp), or nothing:
    random noise of full size."""

    def __post_init__(self) -> None:
        super().__post_init__()
        remedy = "add --method.batch-norm auxiliary"
        both = self.attack_batch_norm == "main" or self.batch_norm == "auxiliary"
        require(both, f"attack_batch_norm {self.attack_batch_norm} needs a second set of BatchNorm layers; {remedy}")

    def start(self, context: Context) -> State:
        from holdfast.attacks.bias_attack import EvalCopies

        state = super().start(context)
        state.eval_copies = EvalCopies()
        if self.batch_norm == "auxiliary":
            from holdfast.methods._state import AuxiliaryNorms

            state.norms = AuxiliaryNorms(state.biased)
        return state

    def trained_along(self, state: State) -> nn.Module | None:
        return state.norms if self.batch_norm == "auxiliary" else None

    def passes(self, state: State) -> tuple[float, float]:
        """x_adv beside x; to find it, passes of g and, where it is spared, of f; and those that train g alongside."""
        each = {"biased": 2.0 if self.lam else 1.0, "model": 1.0, "noise": 0.0}[self.perturbation]
        return 2.0, self.steps * each + isinstance(self, BiasedTraining)

    def attacked(self, batch: Batch, f: nn.Module, g: nn.Module, *, state: State, rng: Generators) -> View:
        """x_adv: argmax of L(g(x'), y) - λ·L(f(x'), y) over x' within the radius of x; weighted by β."""
        from holdfast.attacks.bias_attack import bias_adversarial
        from holdfast.attacks.pgd import noise
        from holdfast.models.adapters import deviation

        scale = deviation(f) if self.space == "normalised" else None
        within: BallSettings = {"norm": self.norm, "space": self.space, "scale": scale, "bounds": (0.0, 1.0)}
        if self.perturbation == "noise":
            x_adv = noise(batch.x, radius=self.radius, generator=rng["attack"], **within)
        else:
            own = state.norms.applied_to(f) if self.attack_batch_norm == "auxiliary" else f
            fooled, lam = (g, self.lam) if self.perturbation == "biased" else (own, 0.0)
            pair = (own, fooled)
            if self.statistics == "running":  # under autocast, copies that hold the casts, made once per batch
                pair = (state.eval_copies.of(own, batch.x.device), state.eval_copies.of(fooled, batch.x.device))
            x_adv = bias_adversarial(
                batch.x,
                batch.y,
                *pair,
                radius=self.radius,
                lam=lam,
                steps=self.steps,
                step_size=self.step_size,
                random_start=self.random_start,
                **within,
                mode="eval" if self.statistics == "running" else "as-is",
                compile=hasattr(f, "_orig_mod"),
                generator=rng["attack"],
            )
        beta = batch.x.new_full((len(batch),), self.beta)
        norms = state.norms.tensors() if self.batch_norm == "auxiliary" else {}
        return View(x_adv, batch.y, beta, update_statistics=self.running == "all", norms=norms)


@method(
    "erm+biasadv",
    about="ERM with BiasAdv: also train on images that fool a biased model, but not this one.",
    passes=13,
    order=30,
)
class ErmBiasAdv(BiasAdv, BiasedTraining):
    images_alone: ClassVar[bool] = True
    lam: float = 1.0
    radius: float = 1.0
    beta: float = 2.0

    def views(self, batch: Batch, *, model: nn.Module, state: State, rng: Generators) -> Views:
        """Algorithm 1. ERM has no biased model, so g is trained alongside with generalised cross-entropy."""
        f, g, x, y = model, state.biased, batch.x, batch.y
        adversarial = self.attacked(batch, f, g, state=state, rng=rng)  # 5
        loss_g = self.biased_loss(g(x), y)  # 7, 8; after the attack, which must not see this batch's statistics
        return Views((View(x, y), adversarial), auxiliary_loss=loss_g)  # 9, 10


@method("jtt+biasadv", about="JTT with BiasAdv: the first model is the biased one.", passes=12, order=31)
class JttBiasAdv(BiasAdv, Jtt):
    lam: float = 1.0

    def passes(self, state: State) -> tuple[float, float]:
        return (1.0, 0.0) if state.stage.name == "first" else super().passes(state)

    def views(self, batch: Batch, *, model: nn.Module, state: State, rng: Generators) -> Views:
        """Algorithm 2. The first model is the biased one, and is not trained any more in the second stage."""
        sample = super().views(batch, model=model, state=state, rng=rng)
        if state.stage.name == "first":
            return sample
        adversarial = self.attacked(batch, model, state.biased, state=state, rng=rng)  # 12
        return Views((*sample.items, adversarial))  # 14, 15


@method(
    "lff+biasadv",
    about="LfF with BiasAdv: images that fool the biased model, weighted by how much their sample follows the "
    "shortcut.",
    passes=13,
    order=32,
)
class LffBiasAdv(BiasAdv, Lff):
    def views(self, batch: Batch, *, model: nn.Module, state: State, rng: Generators) -> Views:
        """Algorithm 3. A sample counts by its relative difficulty w, and its x_adv by β(1 - w)."""
        from holdfast.losses import cross_entropy

        f, g, x, y = model, state.biased, batch.x, batch.y
        sample, adversarial = View(x, y), self.attacked(batch, f, g, state=state, rng=rng)  # 6
        logits_g = g(x)  # after the attack, which must not see this batch's statistics
        ce_g = cross_entropy(logits_g.detach(), y)

        def weigh(logits_f: Tensor) -> Views:  # f(x) is that of line 11, at the unmoved weights: one forward pass
            w = self.relative_difficulty(batch, loss_g=ce_g, loss_f=cross_entropy(logits_f, y), state=state)  # 5
            w_adv = self.beta * (1 - w)  # 7
            return Views((replace(sample, weight=w), replace(adversarial, weight=w_adv)))  # 11, 12

        return Views((sample, adversarial), auxiliary_loss=self.biased_loss(logits_g, y), weigh=weigh)  # 9, 10
