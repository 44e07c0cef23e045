"""A small non-quadratic problem, optimisers for it, and Friendly SAM written down a second time as a plain loop."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.optim import SGD, Adagrad, Adam, AdamW, NAdam, RMSprop

from holdfast.optim import SAM, FriendlySAM

Example = tuple[Tensor, Tensor]
CLOSE = {"rtol": 0.0, "atol": 1e-12}
BASES: dict[str, tuple[Any, dict[str, Any]]] = {
    "sgd": (SGD, {"lr": 0.1, "foreach": False}),
    "momentum": (SGD, {"lr": 0.1, "momentum": 0.9, "foreach": True}),
    "fused momentum": (SGD, {"lr": 0.1, "momentum": 0.9, "fused": True}),
    "fused dampening": (SGD, {"lr": 0.1, "momentum": 0.9, "dampening": 0.5, "fused": True}),
    "fused nesterov": (SGD, {"lr": 0.1, "momentum": 0.9, "weight_decay": 0.1, "nesterov": True, "fused": True}),
    "adam": (Adam, {"lr": 0.02}),
    "fused adamw": (AdamW, {"lr": 0.02, "amsgrad": True, "fused": True}),
    "fused adagrad": (Adagrad, {"lr": 0.02, "fused": True}),
    "nadam": (NAdam, {"lr": 0.02}),
    "rmsprop": (RMSprop, {"lr": 0.02, "momentum": 0.5}),
}


def make_net(*, seed: int = 0, dtype: torch.dtype = torch.float64) -> nn.Sequential:
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        return nn.Sequential(nn.Linear(3, 5), nn.Tanh(), nn.Linear(5, 2)).to(dtype)


def make_batches(n: int, *, size: int = 8, seed: int = 1, dtype: torch.dtype = torch.float64) -> list[Example]:
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(n, size, 3, generator=generator, dtype=dtype)
    y = torch.randint(0, 2, (n, size), generator=generator)
    return list(zip(x, y, strict=True))


def make_optimizer(model: nn.Module, base: str = "momentum", kind: type[SAM] = FriendlySAM, **settings: Any) -> SAM:
    descent, own = BASES[base]
    return kind(model.parameters(), descent, **{"rho": 0.1, **own, **settings})


def loss_closure(model: nn.Module, example: Example) -> Callable[[], Tensor]:
    x, y = example

    def closure() -> Tensor:
        loss = F.cross_entropy(model(x), y)
        loss.backward()
        return loss

    return closure


def train(model: nn.Module, optimizer: torch.optim.Optimizer, batches: Iterable[Example], **options: Any) -> None:
    """A step on each batch; zero_grad is for optimisers that do not do it themselves."""
    for example in batches:
        optimizer.zero_grad()
        optimizer.step(loss_closure(model, example), **options)


def flat(tensors: Iterable[Tensor]) -> Tensor:
    return torch.cat([t.detach().flatten() for t in tensors])


def weights(model: nn.Module) -> Tensor:
    return flat(model.parameters()).clone()


def identical(a: Any, b: Any) -> bool:
    """Equality bit for bit, through lists and dicts; tensors by value."""
    if isinstance(a, Tensor) or isinstance(b, Tensor):
        return isinstance(a, Tensor) and isinstance(b, Tensor) and a.dtype == b.dtype and torch.equal(a, b)
    if isinstance(a, dict):
        return isinstance(b, dict) and a.keys() == b.keys() and all(identical(a[k], b[k]) for k in a)
    if isinstance(a, (list, tuple)):
        return len(a) == len(b) and all(identical(x, y) for x, y in zip(a, b, strict=True))
    return bool(a == b)


def snapshot(model: nn.Module, optimizer: SAM) -> Any:
    return copy.deepcopy([list(model.parameters()), optimizer.state_dict()])


class PlainLoop:
    """Friendly SAM parameter by parameter, from the equations. ``base`` is a torch optimiser, driven by hand."""

    def __init__(
        self, params: Iterable[Tensor], base: torch.optim.Optimizer, *, rho: float, sigma: float = 0.0, lmbda: float = 0
    ) -> None:
        self.params, self.base = list(params), base
        self.rho, self.sigma, self.lmbda = rho, sigma, lmbda
        self.mean: dict[Tensor, Tensor] = {}

    def step(self, closure: Callable[[], Any]) -> None:
        self.base.zero_grad()
        closure()
        moving = [p for p in self.params if p.grad is not None]
        direction = {}
        for p in moving:
            gradient = p.grad.to_dense() if p.grad.is_sparse else p.grad.clone()
            if p in self.mean:
                direction[p] = gradient - self.sigma * self.mean[p]
                self.mean[p] = self.lmbda * self.mean[p] + (1 - self.lmbda) * gradient
            else:
                direction[p], self.mean[p] = gradient, gradient
        norm = sum((d * d).sum() for d in direction.values()) ** 0.5 if direction else None
        before = {p: p.detach().clone() for p in moving}
        with torch.no_grad():
            for p in moving:
                p.add_(self.rho * direction[p] / (norm + 1e-12))
        self.base.zero_grad()
        closure()
        with torch.no_grad():
            for p in moving:
                p.copy_(before[p])
        self.base.step()


def run_loop(loop: PlainLoop, model: nn.Module, batches: Sequence[Example]) -> None:
    for example in batches:
        loop.step(loss_closure(model, example))
