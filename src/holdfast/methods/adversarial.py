"""Adversarial training (Madry et al., 2018)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from holdfast.errors import require
from holdfast.methods import Method
from holdfast.parts import method
from holdfast.settings import Unset
from holdfast.types import Batch, View, Views

if TYPE_CHECKING:
    from torch import nn

    from holdfast.methods import State
    from holdfast.rng import Generators


@method(
    "adversarial",
    about="Adversarial training: the images near the samples that the model gets most wrong (PGD).",
    passes=8,
)
@dataclass(frozen=True)
class Adversarial(Method):
    radius: float = 8 / 255
    """In pixels."""
    steps: int = 7
    step_size: Unset[float] = None
    """Length of a step (default: 2.5 radius / steps)."""
    norm: Literal["linf", "l2"] = "linf"
    random_start: bool = True
    clean: float = 0.0
    """Weight of the samples themselves, beside their neighbours."""

    def __post_init__(self) -> None:
        require(self.radius >= 0, f"radius must be >= 0, got {self.radius}")
        require(self.steps >= 1, f"steps must be >= 1, got {self.steps}")
        require(self.step_size is None or self.step_size > 0, f"step_size must be > 0, got {self.step_size}")
        require(self.clean >= 0, f"clean must be >= 0, got {self.clean}")

    def views(self, batch: Batch, *, model: nn.Module, state: State, rng: Generators) -> Views:
        from holdfast.attacks import pgd

        found = pgd(
            model,
            batch.x,
            batch.y,
            radius=self.radius,
            steps=self.steps,
            step_size=self.step_size,
            norm=self.norm,
            random_start=self.random_start,
            keep="last",
            generator=rng["attack"],
        )
        attacked = View(found, batch.y)
        if not self.clean:
            return Views((attacked,))
        weight = batch.x.new_full((len(batch),), self.clean)
        return Views((View(batch.x, batch.y, weight), attacked))
