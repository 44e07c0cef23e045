"""Label smoothing as a vicinity of the label (ALPS, section 3.1)."""

from __future__ import annotations

from torch import nn

from holdfast.augment.mixing import smooth_labels
from holdfast.methods.base import Method
from holdfast.rng import Generators
from holdfast.settings.methods import LabelSmoothing
from holdfast.types import Batch, View, Views


class LabelSmoothingMethod(Method):
    settings: LabelSmoothing

    def views(self, batch: Batch, *, model: nn.Module, rng: Generators) -> Views:
        label = smooth_labels(batch.y, self.context.num_classes, epsilon=self.settings.epsilon)
        return Views((View(batch.x, label),))
