"""How far each weight may move: the operator T of a sharpness-aware ascent (F-SAM supplement, eq. 49-51).

A metric turns a direction d into (T·d, T²·d): the first is what is normalised, the second what is added.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, Protocol

import torch

from holdfast.errors import require_known
from holdfast.optim.descent import require_eta
from holdfast.optim.foreach import Tensors

Scales = Literal["all", "matrices", "weights"]


class Metric(Protocol):
    """T of one family. The lists run in parallel over parameters; nothing is changed in place."""

    def scale(self, weights: Tensors, gradients: Tensors, direction: Tensors) -> tuple[Tensors, Tensors]:
        """(T·d, T²·d) at the given weights and raw gradients."""


@dataclass(frozen=True)
class Euclidean:
    """T = 1: SAM."""

    def scale(self, weights: Tensors, gradients: Tensors, direction: Tensors) -> tuple[Tensors, Tensors]:
        return direction, direction


@dataclass(frozen=True)
class Adaptive:
    """T = abs(w) + eta: ASAM, a step in proportion to each weight.

    scales: which tensors are treated so, where T = 1 for the others: ``all``; ``matrices``, which leaves out biases and
    normalisation (one dimension); or ``weights``, all with "weight" in their name, as in the code of ASAM's authors,
    who take eta = 0.01. Names are given to the optimiser with the parameters.
    """

    eta: float = 0.0
    scales: Scales = "all"

    def __post_init__(self) -> None:
        require_eta(self.eta)
        require_known("choice of scales", self.scales, ("all", "matrices", "weights"))

    def scale(
        self, weights: Tensors, gradients: Tensors, direction: Tensors, names: Sequence[str] = ()
    ) -> tuple[Tensors, Tensors]:
        t = list(torch._foreach_abs(weights))
        if self.eta:
            torch._foreach_add_(t, self.eta)
        if self.scales != "all":
            scaled = ["weight" in name for name in names] if self.scales == "weights" else [w.ndim > 1 for w in weights]
            t = [own if yes else torch.ones_like(own) for own, yes in zip(t, scaled, strict=True)]
        once = list(torch._foreach_mul(t, direction))
        return once, list(torch._foreach_mul(t, once))


@dataclass(frozen=True)
class Fisher:
    """T² = 1 / (1 + eta·g²): Fisher SAM, shorter steps where the gradient is large."""

    eta: float = 1.0

    def __post_init__(self) -> None:
        require_eta(self.eta)

    def scale(self, weights: Tensors, gradients: Tensors, direction: Tensors) -> tuple[Tensors, Tensors]:
        squared = list(torch._foreach_mul(gradients, [g.conj() for g in gradients]))
        torch._foreach_mul_(squared, self.eta)
        torch._foreach_add_(squared, 1.0)
        twice = list(torch._foreach_div(direction, squared))
        torch._foreach_sqrt_(squared)
        return list(torch._foreach_div(direction, squared)), twice
