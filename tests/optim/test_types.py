"""Weights in half precision, in several types, and complex ones."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.optim import SGD

from holdfast.optim import ASAM, SAM, FisherSAM, FriendlySAM
from tests.optim.problems import CLOSE

HALVES = [torch.float16, torch.bfloat16]


@pytest.mark.parametrize("kind", [SAM, ASAM, FisherSAM, FriendlySAM])
@pytest.mark.parametrize("dtype", HALVES)
def test_a_vanishing_gradient_moves_nothing(kind: type[SAM], dtype: torch.dtype) -> None:
    w = nn.Parameter(torch.ones(4, dtype=dtype))
    optimizer = kind([w], SGD, lr=0.1)
    w.grad = torch.zeros_like(w)
    optimizer.first_step()
    assert torch.equal(w, torch.ones_like(w))


@pytest.mark.parametrize("dtype", HALVES)
@pytest.mark.parametrize("beside", [[], [torch.float32], [torch.float64]])
def test_large_gradients_in_half_precision_are_climbed(dtype: torch.dtype, beside: list[torch.dtype]) -> None:
    """Their norm, 2e5, is more than float16 can hold. The length of the climb is the radius."""
    params = [nn.Parameter(torch.zeros(100, dtype=own)) for own in [dtype, *beside]]
    optimizer = FriendlySAM(params, SGD, lr=1e-6, rho=0.05)
    for p in params:
        p.grad = torch.full_like(p, 2e4)
    optimizer.first_step()
    assert float(torch.cat([p.detach().double() for p in params]).norm()) == pytest.approx(0.05, rel=0.01)
    optimizer.second_step()
    assert all(bool((p < 0).all()) for p in params)


def pull(w: Tensor, step: int) -> Tensor:
    """A loss of pairs of real numbers that is not quadratic and changes from step to step."""
    targets = torch.arange(w.numel(), dtype=w.dtype).reshape(w.shape) / 7 + step
    return (torch.tanh(w - targets) * targets).sum()


@pytest.mark.parametrize("settings", [{}, {"skip_nonfinite": False}])
@pytest.mark.parametrize("sigma", [0.0, 0.5, 1.0])
def test_complex_weights_train_as_pairs_of_real_ones(sigma: float, settings: dict[str, Any]) -> None:
    start = torch.randn(3, 4, dtype=torch.complex128, generator=torch.Generator().manual_seed(0))
    whole, pairs = nn.Parameter(start.clone()), nn.Parameter(torch.view_as_real(start).clone())
    one = FriendlySAM([whole], SGD, lr=0.1, momentum=0.9, sigma=sigma, **settings)
    other = FriendlySAM([pairs], SGD, lr=0.1, momentum=0.9, sigma=sigma, **settings)
    for step in range(5):
        one.step(lambda step=step: pull(torch.view_as_real(whole), step).backward())
        other.step(lambda step=step: pull(pairs, step).backward())
    torch.testing.assert_close(torch.view_as_real(whole.detach()), pairs.detach(), **CLOSE)


def test_complex_weights_are_scaled_by_the_size_of_their_gradient() -> None:
    w = nn.Parameter(torch.zeros(2, dtype=torch.complex128))
    w.grad = torch.tensor([3 + 4j, 1j], dtype=torch.complex128)
    FisherSAM([w], SGD, lr=0.1, rho=1.0, eta=2.0).first_step()
    squared = 1 / (1 + 2 * torch.tensor([25.0, 1.0], dtype=torch.float64))
    length = (squared * torch.tensor([25.0, 1.0])).sum().sqrt()
    torch.testing.assert_close(w.detach(), squared * w.grad / length, **CLOSE)
