"""Gaussian noise on images: the neighbourhood that vicinal risk minimisation was first proposed with (ALPS, eq. 5)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, ClassVar

from holdfast.methods import Batch, Method, View, Views, method
from holdfast.settings import Within

if TYPE_CHECKING:
    from torch import nn

    from holdfast.methods import Generators, State


@method("gaussian", about="Vicinal risk minimisation as first proposed: Gaussian noise on the images.")
class Gaussian(Method):
    images_alone: ClassVar[bool] = True
    sigma: Annotated[float, Within(0)] = 0.05
    """Standard deviation of the noise, in pixels of [0, 1]."""

    def views(self, batch: Batch, *, model: nn.Module, state: State, rng: Generators) -> Views:
        import torch

        noise = torch.empty_like(batch.x).normal_(generator=rng["mix"])
        return Views((View(batch.x + self.sigma * noise, batch.y),))
