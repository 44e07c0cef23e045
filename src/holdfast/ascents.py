"""Where a step takes its gradient: at the weights, or where an ascent moved them to. Open this file to write an ascent.

An ascent is a class of its settings with ``@ascent`` on top (holdfast.parts), which makes it a frozen dataclass. It
says which optimiser climbs and descends, with which metric T, and along whose gradient (F-SAM supplement, A5). Nothing
here imports torch as it is imported, since ``holdfast train --help`` reads it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal, Protocol

from holdfast.parts import ascent
from holdfast.settings import AscentSettings, TrainSettings, Within
from holdfast.types import Batch, Views

if TYPE_CHECKING:
    from contextlib import AbstractContextManager

    from torch import Tensor
    from torch.optim import Optimizer

    Params = list[tuple[str, Tensor]]
    Scheduled = Callable[[float], float | Tensor]

Drawn = list[tuple[Views, float]]
"""Views of each part of a batch, with the part's share of the whole."""


@dataclass(frozen=True)
class Evaluated:
    """A batch whose gradient is in the parameters: its loss, the logits (B, K) of its first view, its weighed views."""

    loss: Tensor
    logits: Tensor
    drawn: Drawn


class Gradients(Protocol):
    """The part of a training step that an ascent uses to leave its direction in the gradients of the parameters."""

    def gradients(self, drawn: Drawn) -> Evaluated:
        """Leave the gradient of a batch there, at the present weights."""

    def add_gradients(self, drawn: Drawn) -> Evaluated:
        """Add it to what is there."""

    def full_gradient(self) -> None:
        """Leave the gradient of the whole training set, not augmented, there."""

    def draw(self, raw: Batch, *, augment: bool) -> Drawn:
        """The method's views of a batch."""

    def without_trace(self) -> AbstractContextManager[None]:
        """Passes inside leave running statistics and what the method remembers as they are."""

    def trained(self) -> list[Tensor]:
        """Every parameter that is trained."""


@dataclass(frozen=True)
class Ascent(AscentSettings):
    """One of the ascents in weight space. No function must be overridden: the defaults take the gradient in place."""

    reads_whole_set: ClassVar[bool] = False
    """Whether every step passes over the whole training set. Such a step cannot be captured as a CUDA graph."""
    declared_passes: ClassVar[float] = 2.0
    per_rank: ClassVar[bool] = False
    """Whether each rank of a training climbs along the gradient of its own part of a batch."""

    @property
    def passes(self) -> float:
        """How often a step evaluates the loss of a batch, with its gradient."""
        return self.declared_passes

    @property
    def other_batches(self) -> int:
        """How many batches are climbed along beside the one that is trained on."""
        return 0

    def optimizer(
        self, params: Params, base: type[Optimizer], *, scheduled: Scheduled, skip_nonfinite: bool, **options: Any
    ) -> Optimizer:
        """The optimiser that descends: ``base`` with its options, inside ``holdfast.optim.SAM`` where there is a climb.

        params: with their names. scheduled: puts a number that changes in training where a CUDA graph can read it.
        """
        return base(params, **options)

    def direction(self, step: Gradients, drawn: Drawn, others: Sequence[Batch]) -> Evaluated | None:
        """Leave the direction to climb along in the gradients of the parameters.

        Returns what it found of the batch itself at the unmoved weights, or None where it did not evaluate it.
        """
        return step.gradients(drawn)

    def radius(self, done: float) -> float | None:
        """The radius when this share of a stage is done; None where it does not change."""
        return None


def ascent_of(settings: TrainSettings) -> Ascent:
    """The ascent that settings name, with what it does."""
    assert isinstance(settings.ascent, Ascent), f"{type(settings.ascent)} must be a subclass of Ascent"
    return settings.ascent


@ascent("none", about="Take the gradient at the weights themselves.", passes=1, order=0)
class NoAscent(Ascent):
    pass


@ascent("sam", about="SAM: the steepest point within a ball around the weights.", order=10)
class Sam(Ascent):
    rho: Annotated[float, Within(0)] = 0.05
    """Radius of the ascent."""
    rho_schedule: Literal["constant", "linear", "cosine"] = "constant"
    """How the radius moves over the training, from rho to 0."""
    per_rank: bool = False  # type: ignore[misc]
    """Under torchrun: each rank climbs along the gradient of its own part of the batch (m-sharpness), not of all."""

    def optimizer(
        self, params: Params, base: type[Optimizer], *, scheduled: Scheduled, skip_nonfinite: bool, **options: Any
    ) -> Optimizer:
        from holdfast.optim import SAM

        own = {"rho": scheduled(self.rho), **self.sam_options()}
        return SAM(params, base, skip_nonfinite=skip_nonfinite, **own, **options)

    def sam_options(self) -> dict[str, Any]:
        """metric: T, how far each weight may move, if not Euclidean; friendly: what is taken out of the direction."""
        return {}

    def radius(self, done: float) -> float | None:
        if self.rho_schedule == "constant":
            return None
        return self.rho * (1 - done if self.rho_schedule == "linear" else 0.5 * (1 + math.cos(math.pi * done)))


@ascent("asam", about="ASAM: a ball that scales with each weight.", order=11)
class Asam(Sam):
    measure: ClassVar[str] = "relative"
    rho: float = 0.5
    eta: Annotated[float, Within(0)] = 0.01
    """Added to the size of each weight."""
    scales: Literal["matrices", "weights"] = "matrices"
    """What is scaled: tensors of two dimensions or more; or all called a weight, BatchNorm's too, as its authors do."""

    def sam_options(self) -> dict[str, Any]:
        from holdfast.optim import Adaptive

        return {"metric": Adaptive(self.eta, self.scales)}


@ascent("fisher-sam", about="Fisher SAM: a ball in the geometry of the gradient's own size.", order=12)
class FisherSam(Sam):
    eta: Annotated[float, Within(0)] = 1.0
    """Weight of the squared gradient."""

    def sam_options(self) -> dict[str, Any]:
        from holdfast.optim import Fisher

        return {"metric": Fisher(self.eta)}


@dataclass(frozen=True)
class Friendly(Sam):
    """Friendly SAM's direction: without its part along the full gradient, of which a running mean is kept."""

    sigma: Annotated[float, Within(0)] = 1.0
    """How much of the running mean gradient is taken away."""
    lmbda: Annotated[float, Within(0, 1, "[)")] = 0.9
    """Memory of the running mean."""

    def sam_options(self) -> dict[str, Any]:
        return {**super().sam_options(), "friendly": True, "sigma": self.sigma, "lmbda": self.lmbda}


@ascent(
    "fsam",
    aliases=("friendly-sam",),
    about="Friendly SAM: SAM without the full-gradient part of its direction.",
    order=13,
)
class Fsam(Friendly):
    pass


@ascent("fasam", aliases=("friendly-asam",), about="Friendly ASAM.", order=14)
class Fasam(Friendly, Asam):
    rho: float = 0.5


@ascent("fisher-fsam", aliases=("friendly-fisher-sam", "fisher-friendly-sam"), about="Friendly Fisher SAM.", order=15)
class FisherFsam(Friendly, FisherSam):
    pass


@ascent(
    "sam-full",
    about="SAM along the gradient of the whole training set; a study tool, as slow as it sounds.",
    passes=1,
    order=20,
)
class SamFull(Sam):
    reads_whole_set: ClassVar[bool] = True

    def direction(self, step: Gradients, drawn: Drawn, others: Sequence[Batch]) -> None:
        step.full_gradient()


@ascent("sam-db", about="SAM along the gradient of another random batch.", order=21)
class SamDb(Sam):
    @property
    def other_batches(self) -> int:
        return 1

    def direction(self, step: Gradients, drawn: Drawn, others: Sequence[Batch]) -> None:
        (other,) = others
        with step.without_trace():
            step.gradients(step.draw(other, augment=True))


@ascent(
    "sam-large",
    about="SAM along the gradient of a larger batch: the one that is trained on and others.",
    passes=5,
    order=22,
)
class SamLarge(Sam):
    batches: Annotated[int, Within(1)] = 4
    """How many batches together; 1 is SAM."""

    @property
    def passes(self) -> float:
        return self.batches + 1.0

    @property
    def other_batches(self) -> int:
        return self.batches - 1

    def direction(self, step: Gradients, drawn: Drawn, others: Sequence[Batch]) -> Evaluated:
        """The mean over the batch and others, as large as it (figure A1)."""
        own = step.gradients(drawn)
        with step.without_trace():
            for other in others:
                step.add_gradients(step.draw(other, augment=True))
        for p in step.trained():
            if p.grad is not None:
                p.grad /= 1 + len(others)
        return own


@ascent(
    "sam-noise",
    about="SAM along the batch gradient without its part along the full gradient; as slow as sam-full.",
    order=23,
)
class SamNoise(Sam):
    reads_whole_set: ClassVar[bool] = True

    def direction(self, step: Gradients, drawn: Drawn, others: Sequence[Batch]) -> Evaluated:
        import torch

        from holdfast.optim.foreach import without_projection

        own = step.gradients(drawn)
        params = [p for p in step.trained() if p.grad is not None]
        gradient = [p.grad for p in params if p.grad is not None]
        step.full_gradient()
        full = [torch.zeros_like(p) if p.grad is None else p.grad for p in params]
        for p, direction in zip(params, without_projection(gradient, full), strict=True):
            p.grad = direction
        return own
