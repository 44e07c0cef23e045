"""Label smoothing: a neighbourhood of the label (ALPS, section 3.1)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, ClassVar

from holdfast.methods import Batch, Method, View, Views, method
from holdfast.settings import Within

if TYPE_CHECKING:
    from torch import nn

    from holdfast.methods import Generators, State


@method("label-smoothing", about="Label smoothing: a share of each label is spread over the other classes.")
class LabelSmoothing(Method):
    images_alone: ClassVar[bool] = True
    epsilon: Annotated[float, Within(0, 1)] = 0.1
    """The share; each other class gets epsilon / (K - 1) of it."""

    def views(self, batch: Batch, *, model: nn.Module, state: State, rng: Generators) -> Views:
        from holdfast.augment.mixing import smooth_labels

        return Views((View(batch.x, smooth_labels(batch.y, state.context.num_classes, epsilon=self.epsilon)),))
