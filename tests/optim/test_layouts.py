"""Gradients that are sparse, or lie otherwise than their weights in memory, train as plain ones do."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.optim import SGD, SparseAdam

from holdfast.optim import FriendlySAM
from tests.optim.problems import BASES, CLOSE, PlainLoop, identical, make_optimizer, run_loop, snapshot, train, weights


class Words(nn.Module):
    def __init__(self, *, sparse: bool) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.table = nn.Embedding(12, 2, sparse=sparse, dtype=torch.float64)

    def forward(self, x: Tensor) -> Tensor:
        return torch.tanh(self.table(x)).sum(1)


WORDS = [
    (torch.randint(0, 12, (8, 3), generator=torch.Generator().manual_seed(i)), torch.arange(8) % 2) for i in range(6)
]


@pytest.mark.parametrize("sigma", [0.0, 0.5, 1.0])
@pytest.mark.parametrize("settings", [{"lr": 0.1}, {"lr": 0.1, "momentum": 0.9}, {"lr": 0.1, "foreach": False}])
def test_sparse_gradients_train_as_dense_ones_do(sigma: float, settings: dict[str, Any]) -> None:
    sparse, dense = Words(sparse=True), Words(sparse=False)
    for model in (sparse, dense):
        train(model, FriendlySAM(model.parameters(), SGD, rho=0.1, sigma=sigma, lmbda=0.6, **settings), WORDS)
    torch.testing.assert_close(weights(sparse), weights(dense), **CLOSE)


@pytest.mark.parametrize("sigma", [0.0, 1.0])
def test_an_optimiser_for_sparse_gradients_gets_them(sigma: float) -> None:
    model, reference = Words(sparse=True), Words(sparse=True)
    base = SparseAdam(reference.parameters(), lr=0.05)
    run_loop(PlainLoop(reference.parameters(), base, rho=0.1, sigma=sigma, lmbda=0.6), reference, WORDS)
    optimizer = FriendlySAM(model.parameters(), SparseAdam, rho=0.1, sigma=sigma, lmbda=0.6, lr=0.05)
    train(model, optimizer, WORDS)
    torch.testing.assert_close(weights(model), weights(reference), **CLOSE)


@pytest.mark.parametrize("bad_pass", [1, 2])
def test_a_bad_sparse_gradient_skips_the_step(bad_pass: int) -> None:
    model = Words(sparse=True)
    optimizer = FriendlySAM(model.parameters(), SparseAdam, lr=0.05)
    train(model, optimizer, WORDS[:3])
    before = snapshot(model, optimizer)
    calls = 0

    def closure() -> None:
        nonlocal calls
        calls += 1
        loss = F.cross_entropy(model(WORDS[4][0]), WORDS[4][1])
        (loss * float("nan") if calls == bad_pass else loss).backward()

    optimizer.step(closure)
    assert identical(before, snapshot(model, optimizer))


@pytest.mark.parametrize("base", ["momentum", "fused momentum"])
def test_a_gradient_may_lie_otherwise_than_its_weight(base: str) -> None:
    """Someone may set it; torch's fused kernels on the CPU go by memory, whatever the strides."""
    generator = torch.Generator().manual_seed(0)
    gradients = [torch.randn(3, 2, generator=generator, dtype=torch.float64).t() for _ in range(4)]
    average = {}
    for lie in ("otherwise", "alike"):
        w = nn.Parameter(torch.ones(2, 3, dtype=torch.float64))
        kind, settings = BASES[base]
        optimizer = FriendlySAM([w], kind, **settings)
        for g in gradients:
            w.grad = g.clone() if lie == "otherwise" else g.contiguous()
            assert w.grad.is_contiguous() == (lie == "alike")
            optimizer.first_step()
            w.grad = g.contiguous()
            optimizer.second_step()
        average[lie] = optimizer.average[w].clone()
    torch.testing.assert_close(average["otherwise"], average["alike"], **CLOSE)


def test_channels_last_weights() -> None:
    torch.manual_seed(0)
    plain = nn.Sequential(nn.Conv2d(3, 4, 3), nn.Tanh(), nn.Conv2d(4, 2, 3)).double()
    moved = copy.deepcopy(plain).to(memory_format=torch.channels_last)
    x = torch.randn(4, 3, 8, 8, dtype=torch.float64)
    for model, own in ((plain, x), (moved, x.contiguous(memory_format=torch.channels_last))):
        optimizer = make_optimizer(model, "fused momentum")
        for _ in range(4):
            optimizer.step(lambda model=model, own=own: model(own).square().mean().backward())
    torch.testing.assert_close(weights(moved), weights(plain), **CLOSE)
