"""Parameters without a gradient: frozen, idle, late, or without one now and then."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import Tensor, nn
from torch.optim import SGD, Adam

from holdfast.optim import SAM, FriendlySAM
from holdfast.optim.average import EMA_KEY
from tests.optim.problems import (
    BASES,
    CLOSE,
    PlainLoop,
    make_batches,
    make_net,
    make_optimizer,
    run_loop,
    train,
    weights,
)


class Branches(nn.Module):
    """``late`` joins at a given call; ``idle`` never does; ``fixed`` is frozen."""

    def __init__(self, joins: int) -> None:
        super().__init__()
        generator = torch.Generator().manual_seed(0)
        draw = lambda: torch.randn(2, 3, generator=generator, dtype=torch.float64)  # noqa: E731
        self.always, self.late = nn.Parameter(draw()), nn.Parameter(draw())
        self.idle, self.fixed = nn.Parameter(draw()), nn.Parameter(draw(), requires_grad=False)
        self.left = joins

    def forward(self, x: Tensor) -> Tensor:
        self.left -= 1
        w = self.always + self.fixed
        return torch.tanh(x @ (w + self.late if self.left < 0 else w).T)


@pytest.mark.usefixtures("unset_memory_is_nan")
@pytest.mark.parametrize("base", sorted(BASES.keys() - {"fused dampening"}))  # torch's own cannot take one late
@pytest.mark.parametrize("joins", [0, 4, 6])  # calls, of which there are two a step
@pytest.mark.parametrize("sigma", [0.0, 0.5, 1.0])
def test_parameters_without_a_gradient_wait_for_their_first(base: str, joins: int, sigma: float) -> None:
    kind, settings = BASES[base]
    batches = make_batches(6)
    model, reference = Branches(joins), Branches(joins)
    idle, fixed = model.idle.clone(), model.fixed.clone()
    settings = {k: v for k, v in settings.items() if k != "fused"}
    run_loop(
        PlainLoop(reference.parameters(), kind(reference.parameters(), **settings), rho=0.1, sigma=sigma, lmbda=0.6),
        reference,
        batches,
    )
    train(model, make_optimizer(model, base, sigma=sigma, lmbda=0.6), batches)
    torch.testing.assert_close(weights(model), weights(reference), **CLOSE)
    assert torch.equal(model.idle, idle)
    assert torch.equal(model.fixed, fixed)
    assert not torch.equal(model.late, Branches(0).late)


def test_a_parameter_may_go_without_between_two_passes_and_steps() -> None:
    class Alternating(nn.Module):
        """One branch in odd calls, the other in even ones."""

        def __init__(self) -> None:
            super().__init__()
            self.a, self.b = nn.Linear(3, 2).double(), nn.Linear(3, 2).double()
            self.calls = 0

        def forward(self, x: Tensor) -> Tensor:
            self.calls += 1
            return torch.tanh((self.a, self.b)[self.calls // 3 % 2](x))

    torch.manual_seed(0)
    model = Alternating()
    reference = copy.deepcopy(model)
    batches = make_batches(9)
    base = Adam(reference.parameters(), lr=0.02)
    run_loop(PlainLoop(reference.parameters(), base, rho=0.1, sigma=1.0, lmbda=0.9), reference, batches)
    train(model, make_optimizer(model, "adam"), batches)
    torch.testing.assert_close(weights(model), weights(reference), **CLOSE)


def test_a_step_without_any_gradient_moves_nothing() -> None:
    model = make_net()
    optimizer, before = make_optimizer(model), weights(model)
    optimizer.step(lambda: None)
    assert torch.equal(weights(model), before)
    train(model, optimizer, make_batches(1))
    assert not torch.equal(weights(model), before)


@pytest.mark.parametrize("way", ["a bad step", "an ascent taken back", "a look"])
def test_a_mean_starts_with_its_own_first_gradient(way: str) -> None:
    """Whatever happened before to parameters that it was together with."""
    a, b = (nn.Parameter(torch.ones(3)) for _ in range(2))
    optimizer = FriendlySAM([a, b], SGD, lr=0.0)

    def give(first: float | None, second: float | None) -> None:
        for p, value in ((a, first), (b, second)):
            p.grad = None if value is None else torch.full_like(p, value)

    if way == "a bad step":
        optimizer.step(lambda: give(float("nan"), 1.0))
    elif way == "an ascent taken back":
        give(1.0, 1.0)
        optimizer.first_step(zero_grad=True)
        optimizer.restore()
    else:
        optimizer.ascent_norm([a, b], [torch.ones(3), torch.ones(3)])
    optimizer.step(lambda: give(1.0, None))
    assert [EMA_KEY in entry for entry in optimizer.state_dict()["state"].values()] == [True]
    optimizer.step(lambda: give(1.0, 2.0))
    assert torch.equal(optimizer.average[b], torch.full((3,), 2.0))
    assert torch.equal(optimizer.average[a], torch.ones(3))


@pytest.mark.usefixtures("unset_memory_is_nan")
def test_without_a_check_fused_momentum_may_begin_late_too() -> None:
    first, late = (nn.Parameter(torch.ones(2, dtype=torch.float64)) for _ in range(2))
    settings = {"lr": 0.1, "momentum": 0.9, "fused": True}
    optimizer = SAM([first, late], SGD, rho=0.0, skip_nonfinite=False, **settings)
    optimizer.step(lambda: (first**2).sum().backward())
    optimizer.step(lambda: (first * late).sum().backward())
    # by hand: first 1 - 0.1*2 = 0.8; then momentum 0.9*2 + late (1), and late's own is its first gradient, 0.8
    torch.testing.assert_close(first.detach(), torch.full((2,), 0.8 - 0.1 * (0.9 * 2 + 1), dtype=torch.float64))
    torch.testing.assert_close(late.detach(), torch.full((2,), 1 - 0.1 * 0.8, dtype=torch.float64))
