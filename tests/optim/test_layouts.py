"""Gradients that are sparse, or lie otherwise than their weights in memory, train as plain ones do."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.optim import SGD, SparseAdam

from holdfast.optim import SAM, FriendlySAM
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


@pytest.mark.parametrize("skip", [True, False])
def test_a_model_may_change_its_layout_between_steps(skip: bool) -> None:
    """What is kept of a weight goes with it."""
    torch.manual_seed(0)
    plain = nn.Sequential(nn.Conv2d(3, 4, 3, dtype=torch.float64), nn.Flatten(), nn.LazyLinear(2, dtype=torch.float64))
    examples = [(torch.randn(6, 3, 6, 6, dtype=torch.float64), torch.arange(6) % 2) for _ in range(6)]
    plain(examples[0][0])
    turned = copy.deepcopy(plain)
    first, second = (
        FriendlySAM(net.parameters(), SGD, rho=0.5, lmbda=0.6, lr=0.1, skip_nonfinite=skip) for net in (plain, turned)
    )
    train(plain, first, examples)
    train(turned, second, examples[:3])
    turned.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    train(turned, second, examples[3:])
    torch.testing.assert_close(weights(turned), weights(plain), rtol=0, atol=1e-12)


@pytest.mark.parametrize("kind", [SAM, FriendlySAM])
def test_a_model_may_be_cast_between_steps(kind: type[SAM]) -> None:
    torch.manual_seed(0)
    model = nn.Linear(3, 2)
    optimizer = kind(model.parameters(), SGD, lr=0.0)
    train(model, optimizer, [(torch.randn(4, 3), torch.arange(4) % 2)])
    model.double()
    with torch.no_grad():
        model.weight += 1e-12  # which float32 cannot hold
    before = weights(model)
    train(model, optimizer, [(torch.randn(4, 3, dtype=torch.float64), torch.arange(4) % 2)])
    assert identical(before, weights(model))


def test_what_lies_between_the_elements_of_a_weight_is_left_alone() -> None:
    whole = torch.ones(2, 4)
    w = nn.Parameter(whole[:, ::2])
    optimizer = SAM([w], SGD, lr=0.0, rho=0.1)
    w.grad = torch.ones(2, 4)[:, ::2]
    optimizer.first_step()
    assert float((w.detach() - 1).norm()) == pytest.approx(0.1)
    assert torch.equal(whole[:, 1::2], torch.ones(2, 2))
    optimizer.restore()
    assert torch.equal(whole, torch.ones(2, 4))


def test_a_conjugated_gradient_is_climbed_like_any_other() -> None:
    w = nn.Parameter(torch.tensor([1 + 2j, 3 - 1j]))
    c = torch.tensor([2 - 1j, 0.5 + 1j])
    optimizer = SAM([w], SGD, lr=0.0, rho=0.1)
    (w.conj() * c).abs().sum().backward()
    assert w.grad is not None
    towards = w.grad.resolve_conj() / torch.linalg.vector_norm(w.grad.resolve_conj())
    before = w.detach().clone()
    optimizer.first_step()
    torch.testing.assert_close(w.detach(), before + 0.1 * towards)


def test_a_graph_of_before_the_ascent_is_not_gone_back_through() -> None:
    w = nn.Parameter(torch.tensor(1.0))
    optimizer = SAM([w], SGD, lr=0.1, rho=0.5)
    loss = w * w * w
    loss.backward(retain_graph=True)
    optimizer.first_step(zero_grad=True)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        loss.backward()


def test_a_weight_may_change_its_size_between_steps() -> None:
    """Of three rows one is kept: what was saved of the three is of no use, though its strides are the same."""
    line, x = nn.Linear(4, 3, bias=False), torch.ones(1, 4)
    optimizer = SAM(line.parameters(), SGD, lr=0.1, rho=0.1)
    descend = lambda: line(x).square().sum().backward()  # noqa: E731
    optimizer.step(descend)
    line.weight.data, line.weight.grad = line.weight.data[:1].clone(), None
    alone = copy.deepcopy(line)
    optimizer.step(descend)
    fresh = SAM(alone.parameters(), SGD, lr=0.1, rho=0.1)
    fresh.step(lambda: alone(x).square().sum().backward())
    assert torch.equal(line.weight, alone.weight)
