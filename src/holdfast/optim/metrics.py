"""How far each weight may move: the operator T of a sharpness-aware ascent (F-SAM supplement, eq. 49-51).

A metric turns a direction d into (T·d, T²·d): the first is what is normalised, the second what is added.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import torch

from holdfast.optim.foreach import Tensors
from holdfast.optim.validation import require_eta


class Metric(Protocol):
    """T of one family. The lists run in parallel over parameters; nothing is changed in place."""

    def scale(self, weights: Tensors, gradients: Tensors, direction: Tensors) -> tuple[Tensors, Tensors]:
        """(T·d, T²·d) at the given weights and raw gradients."""
        ...


@dataclass(frozen=True)
class Euclidean:
    """T = 1: SAM."""

    def scale(self, weights: Tensors, gradients: Tensors, direction: Tensors) -> tuple[Tensors, Tensors]:
        return direction, direction


@dataclass(frozen=True)
class Adaptive:
    """T = |w| + eta: ASAM, a step in proportion to each weight.

    vectors: whether biases and normalisation weights (tensors of one dimension) are treated so too. The authors of
    ASAM go by names: T = 1 for all that is not called a weight. They take eta = 0.01.
    """

    eta: float = 0.0
    vectors: bool = True

    def __post_init__(self) -> None:
        require_eta(self.eta)

    def scale(self, weights: Tensors, gradients: Tensors, direction: Tensors) -> tuple[Tensors, Tensors]:
        t = list(torch._foreach_abs(weights))
        if self.eta:
            torch._foreach_add_(t, self.eta)
        if not self.vectors:
            t = [torch.ones_like(w) if w.ndim <= 1 else own for w, own in zip(weights, t, strict=True)]
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
