"""A gradient c that never changes is the full gradient itself: at sigma = 1 nothing of it may be left in the ascent."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.optim import SGD

from holdfast.optim import SAM, FriendlySAM
from tests.optim.reference import VARIANTS


def climb(optimizer: Any, w: Tensor, gradient: Tensor) -> Tensor:
    """ε of one step with the given gradient in both passes."""
    before = w.detach().clone()
    w.grad = gradient.clone()
    optimizer.first_step(zero_grad=True)
    moved = w.detach() - before
    w.grad = gradient.clone()
    optimizer.second_step()
    return moved


def share_left(make: Callable[[list[Tensor]], Any], *, burn_in: int = 100, steps: int = 20) -> float:
    """Largest |cos(ε, c)| after burn-in, for gradients c + n with small noise n at right angles to c."""
    generator = torch.Generator().manual_seed(3)
    c = torch.randn(40, generator=generator, dtype=torch.float64)
    w = nn.Parameter(torch.randn(40, generator=generator, dtype=torch.float64))
    optimizer = make([w])
    left = []
    for t in range(burn_in + steps):
        noise = 0.01 * torch.randn(40, generator=generator, dtype=torch.float64)
        moved = climb(optimizer, w, c + noise - (noise @ c) / (c @ c) * c)
        if t >= burn_in:
            left.append(float((moved @ c).abs() / (moved.norm() * c.norm())))
    return max(left)


class ResidualFed:
    """The mistake: the mean follows g − m instead of g, so it settles at half the gradient."""

    def __init__(self, params: list[Tensor], *, rho: float = 0.05, lmbda: float = 0.9) -> None:
        (self.w,), self.rho, self.lmbda = params, rho, lmbda
        self.mean: Tensor | None = None

    @torch.no_grad()
    def first_step(self, zero_grad: bool) -> None:
        d = self.w.grad if self.mean is None else self.w.grad - self.mean
        self.mean = d if self.mean is None else self.lmbda * self.mean + (1 - self.lmbda) * d
        self.before = self.w.clone()
        self.w += self.rho * d / d.norm()

    @torch.no_grad()
    def second_step(self) -> None:
        self.w.copy_(self.before)


@pytest.mark.parametrize("lmbda", [0.6, 0.9, 0.95])
def test_a_constant_gradient_is_removed_wholly(lmbda: float) -> None:
    assert share_left(lambda p: FriendlySAM(p, SGD, lmbda=lmbda, lr=1e-3)) < 1e-9
    assert share_left(lambda p: ResidualFed(p, lmbda=lmbda)) > 0.99
    assert share_left(lambda p: SAM(p, SGD, lr=1e-3)) > 0.99


@pytest.mark.parametrize("variant", VARIANTS)
def test_nothing_is_left_to_climb_when_the_gradient_never_changes(variant: str) -> None:
    w = nn.Parameter(torch.zeros(40, dtype=torch.float64))
    optimizer = FriendlySAM([w], SGD, rho=0.1, lmbda=0.6, lr=1e-3, **VARIANTS[variant])
    c = torch.linspace(-1, 2, 40, dtype=torch.float64)
    moves = [climb(optimizer, w, c).norm().item() for _ in range(60)]
    assert moves[0] == pytest.approx(0.1)
    assert moves[-1] == 0
    assert torch.equal(optimizer.average[w], c)


@pytest.mark.dev
def test_pytorch_optimizer_leaves_half_of_it_before_version_4_1() -> None:
    peer = pytest.importorskip("pytorch_optimizer", exc_type=ImportError)
    from importlib.metadata import version

    fixed = tuple(int(part) for part in version("pytorch_optimizer").split(".")[:2]) >= (4, 1)
    left = share_left(lambda p: peer.FriendlySAM(p, SGD, lmbda=0.9, lr=1e-3))
    assert (left < 1e-9) == fixed
    assert fixed or left > 0.99
