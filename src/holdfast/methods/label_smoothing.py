"""Label smoothing: a neighbourhood of the label (ALPS, section 3.1)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from holdfast.errors import require
from holdfast.methods import Method
from holdfast.parts import method
from holdfast.types import Batch, View, Views

if TYPE_CHECKING:
    from torch import nn

    from holdfast.methods import State
    from holdfast.rng import Generators


@method("label-smoothing", about="Label smoothing: a share of each label is spread over the other classes.")
@dataclass(frozen=True)
class LabelSmoothing(Method):
    epsilon: float = 0.1
    """The share; each other class gets epsilon / (K - 1) of it."""

    def __post_init__(self) -> None:
        require(0 <= self.epsilon <= 1, f"epsilon must be in [0, 1], got {self.epsilon}")

    def views(self, batch: Batch, *, model: nn.Module, state: State, rng: Generators) -> Views:
        from holdfast.augment.mixing import smooth_labels

        return Views((View(batch.x, smooth_labels(batch.y, state.context.num_classes, epsilon=self.epsilon)),))
