"""Gaussian noise on images: the neighbourhood that vicinal risk minimisation was first proposed with (ALPS, eq. 5)."""

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


@method("gaussian", about="Vicinal risk minimisation as first proposed: Gaussian noise on the images.")
@dataclass(frozen=True)
class Gaussian(Method):
    sigma: float = 0.05
    """Standard deviation of the noise, in pixels of [0, 1]."""

    def __post_init__(self) -> None:
        require(self.sigma >= 0, f"sigma must be >= 0, got {self.sigma}")

    def views(self, batch: Batch, *, model: nn.Module, state: State, rng: Generators) -> Views:
        import torch

        noise = torch.empty_like(batch.x).normal_(generator=rng["mix"])
        return Views((View(batch.x + self.sigma * noise, batch.y),))
