"""Adversarial training (Madry et al., 2018)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, ClassVar, Literal

from holdfast.methods import Batch, Method, View, Views, method
from holdfast.settings import Unset, Within

if TYPE_CHECKING:
    from torch import nn

    from holdfast.methods import Generators, State


@method(
    "adversarial",
    aliases=("adversarial-training", "pgd-at"),
    about="Adversarial training: the images near the samples that the model gets most wrong (PGD).",
    passes=8,
)
class Adversarial(Method):
    images_alone: ClassVar[bool] = True
    radius: Annotated[float, Within(0)] = 8 / 255
    """In pixels."""
    steps: Annotated[int, Within(1)] = 7
    """Steps of PGD."""
    step_size: Annotated[Unset[float], Within(0, ends="(]")] = None
    """Length of a step (default: 2.5 radius / steps, at most the radius)."""
    norm: Literal["linf", "l2"] = "linf"
    """Of the ball around a sample."""
    random_start: bool = True
    """Begin at a random point of the ball, not at the sample."""
    clean: Annotated[float, Within(0)] = 0.0
    """Weight of the samples themselves, beside their neighbours."""

    def passes(self, state: State) -> tuple[float, float]:
        return 1.0 + bool(self.clean), float(self.steps)

    def views(self, batch: Batch, *, model: nn.Module, state: State, rng: Generators) -> Views:
        from holdfast.attacks import pgd

        options = {name: getattr(self, name) for name in ("radius", "steps", "step_size", "norm", "random_start")}
        options |= {"keep": "last", "generator": rng["attack"], "bounds": (0.0, 1.0)}
        attacked = View(pgd(model, batch.x, batch.y, **options), batch.y)
        if not self.clean:
            return Views((attacked,))
        weight = batch.x.new_full((len(batch),), self.clean)
        return Views((View(batch.x, batch.y, weight), attacked))
