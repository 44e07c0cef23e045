"""Gaussian noise on images: the vicinity that vicinal risk minimisation was first proposed with (ALPS, eq. 5)."""

from __future__ import annotations

import torch
from torch import nn

from holdfast.methods.base import Method
from holdfast.rng import Generators
from holdfast.settings.methods import Gaussian
from holdfast.types import Batch, View, Views


class GaussianMethod(Method):
    settings: Gaussian

    def views(self, batch: Batch, *, model: nn.Module, rng: Generators) -> Views:
        noise = torch.empty_like(batch.x).normal_(generator=rng["mix"])
        return Views((View(batch.x + self.settings.sigma * noise, batch.y),))
