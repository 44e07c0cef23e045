"""The equations of every ascent and descent written a second time, on one flat vector."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.func import functional_call
from torch.optim import SGD, Adam, AdamW

from holdfast.optim import Adaptive, Fisher
from tests.optim.problems import Example, flat, weights

STEPS = 10


@dataclass
class Sgd:
    """w ← w − lr·b, where b ← momentum·b + (g + weight_decay·w), and b is the first gradient itself at first."""

    lr: float
    momentum: float = 0.0
    weight_decay: float = 0.0
    dampening: float = 0.0
    nesterov: bool = False
    maximize: bool = False
    buffer: Tensor | None = None

    def __call__(self, w: Tensor, g: Tensor) -> Tensor:
        g = (-g if self.maximize else g) + self.weight_decay * w
        if self.momentum:
            first = self.buffer is None
            self.buffer = g if first else self.momentum * self.buffer + (1 - self.dampening) * g
            g = g + self.momentum * self.buffer if self.nesterov else self.buffer
        return w - self.lr * g


@dataclass
class Moments:
    """Adam, and AdamW when the decay is decoupled."""

    lr: float
    betas: tuple[float, float] = (0.9, 0.999)
    eps: float = 1e-8
    weight_decay: float = 0.0
    decoupled: bool = False
    maximize: bool = False
    t: int = 0
    first: Tensor | float = 0.0
    second: Tensor | float = 0.0

    def __call__(self, w: Tensor, g: Tensor) -> Tensor:
        self.t += 1
        g = -g if self.maximize else g
        if self.decoupled:
            w = w - self.lr * self.weight_decay * w
        else:
            g = g + self.weight_decay * w
        a, b = self.betas
        self.first = a * self.first + (1 - a) * g
        self.second = b * self.second + (1 - b) * g**2
        unbiased = self.first / (1 - a**self.t), self.second / (1 - b**self.t)
        return w - self.lr * unbiased[0] / (unbiased[1].sqrt() + self.eps)


Operator = Callable[[Tensor, Tensor, Tensor], Tensor]
"""T as a diagonal, from the weights, the gradient, and which of the weights are in tensors of one dimension."""
OPERATORS: dict[str, Operator] = {
    "sam": lambda w, g, vector: torch.ones_like(w),
    "asam": lambda w, g, vector: w.abs(),
    "asam-authors": lambda w, g, vector: torch.where(vector, 1.0, w.abs() + 0.01),
    "fisher": lambda w, g, vector: (1 + 2.0 * g**2) ** -0.5,
}


@dataclass
class Reference:
    """w of the flat problem over time."""

    model: nn.Module
    descend: Callable[[Tensor, Tensor], Tensor]
    operator: Operator
    rho: Tensor | float
    sigma: float = 0.0
    lmbda: float = 0.9
    mean: Tensor | None = None
    w: Tensor = field(init=False)

    def __post_init__(self) -> None:
        self.w = weights(self.model)
        self.vector = flat(torch.full_like(p, p.ndim == 1, dtype=torch.bool) for p in self.model.parameters())

    def gradient(self, w: Tensor, example: Example) -> Tensor:
        w = w.clone().requires_grad_()
        names, shapes = zip(*((n, p.shape) for n, p in self.model.named_parameters()), strict=True)
        parts = [part.view(shape) for part, shape in zip(w.split([s.numel() for s in shapes]), shapes, strict=True)]
        loss = F.cross_entropy(
            functional_call(self.model, dict(zip(names, parts, strict=True)), example[0]), example[1]
        )
        return torch.autograd.grad(loss, w)[0]

    def climb(self, example: Example) -> Tensor:
        """ε at w; the mean moves on."""
        g = self.gradient(self.w, example)
        d = g if self.mean is None else g - self.sigma * self.mean
        self.mean = g if self.mean is None else self.lmbda * self.mean + (1 - self.lmbda) * g
        t = self.operator(self.w, g, self.vector)
        return self.rho * t**2 * d / ((t * d).norm() + 1e-12)

    def step(self, example: Example) -> None:
        self.w = self.descend(self.w, self.gradient(self.w + self.climb(example), example))


METRICS: dict[str, dict[str, Any]] = {
    "sam": {},
    "asam": {"adaptive": True},
    "asam-authors": {"metric": Adaptive(0.01, "matrices")},
    "fisher": {"metric": Fisher(2.0)},
}
DESCENTS: dict[str, tuple[Any, Any, dict[str, Any]]] = {
    "sgd": (SGD, Sgd, {"lr": 0.3}),
    "momentum": (SGD, Sgd, {"lr": 0.2, "momentum": 0.9, "weight_decay": 0.01}),
    "dampening": (SGD, Sgd, {"lr": 0.2, "momentum": 0.8, "dampening": 0.3}),
    "nesterov": (SGD, Sgd, {"lr": 0.2, "momentum": 0.9, "weight_decay": 0.01, "nesterov": True}),
    "adam": (Adam, Moments, {"lr": 0.02, "weight_decay": 0.01}),
    "adamw": (AdamW, Moments, {"lr": 0.02, "weight_decay": 0.1}),
}
VARIANTS = {"loop": {"foreach": False}, "foreach": {"foreach": True}, "fused": {"fused": True}}
