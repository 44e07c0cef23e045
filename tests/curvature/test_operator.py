"""Hessians and Gauss-Newton matrices against closed forms and torch, row by row."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from holdfast.curvature import NoSpectrum, Operator, eigenvalues, hessian_operator, lanczos
from holdfast.errors import HoldfastError
from holdfast.losses import cross_entropy
from tests.curvature.matrices import draw, generator, largest

Batches = Sequence[tuple[Tensor, Tensor]]


def dense(operator: Operator) -> Tensor:
    """The matrix, one column a product."""
    return torch.stack([operator(column) for column in torch.eye(operator.size, dtype=operator.dtype)], dim=1)


class Net(nn.Module):
    """A bit of everything: convolution, batch norm with real statistics, pooling, dropout, a parameter not used."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(1, 3, 3, padding=1)
        self.norm = nn.BatchNorm2d(3)
        self.drop = nn.Dropout(0.5)
        self.head = nn.Linear(12, 3)
        self.idle = nn.Parameter(torch.ones(2))

    def forward(self, x: Tensor) -> Tensor:
        x = F.max_pool2d(F.softplus(self.norm(self.conv(x))), 2)
        logits: Tensor = self.head(self.drop(x.flatten(1)))
        return logits


def make_net(dtype: torch.dtype = torch.float64) -> Net:
    with torch.random.fork_rng():
        torch.manual_seed(3)
        net = Net()
        nn.init.uniform_(net.norm.running_var, 0.5, 2.0)
        nn.init.normal_(net.norm.running_mean)
    return net.to(dtype)


def size_of(net: nn.Module) -> int:
    return sum(p.numel() for p in net.parameters())


def images(n: int = 20, dtype: torch.dtype = torch.float64) -> tuple[Tensor, Tensor]:
    return torch.rand(n, 1, 4, 4, generator=generator(4), dtype=dtype), torch.arange(n) % 3


def cut(x: Tensor, y: Tensor, *sizes: int) -> Batches:
    return list(zip(x.split(list(sizes)), y.split(list(sizes)), strict=True))


def full_hessian(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    """By torch, row by row."""
    model = copy.deepcopy(model).eval()
    names, values = zip(*model.named_parameters(), strict=True)
    sizes = [v.numel() for v in values]

    def loss(flat: Tensor) -> Tensor:
        parts = [p.view_as(v) for p, v in zip(flat.split(sizes), values, strict=True)]
        return F.cross_entropy(torch.func.functional_call(model, dict(zip(names, parts, strict=True)), (x,)), y)

    flat = torch.cat([v.detach().flatten() for v in values])
    hessian: Tensor = torch.autograd.functional.hessian(loss, flat)
    return hessian


def test_least_squares_has_a_closed_form() -> None:
    x, y = draw(70, 12) * torch.linspace(1, 4, 12), draw(70, seed=1)
    model = nn.Linear(12, 1, bias=False).double()
    operator = hessian_operator(model, cut(x, y, 30, 30, 10), lambda out, target: (out[:, 0] - target) ** 2)
    exact = 2 / 70 * x.T @ x
    torch.testing.assert_close(dense(operator), exact, rtol=1e-12, atol=1e-12)
    found = lanczos(operator, draw(12), top=5, tolerance=1e-9)
    torch.testing.assert_close(found.eigenvalues, largest(exact, 5), rtol=1e-8, atol=1e-8)


def test_agrees_with_the_full_hessian_of_a_net() -> None:
    net, (x, y) = make_net(), images()
    exact = full_hessian(net, x, y)
    operator = hessian_operator(net, [(x, y)], cross_entropy)
    torch.testing.assert_close(dense(operator), exact, rtol=1e-10, atol=1e-12)
    found = lanczos(operator, draw(operator.size), top=5, tolerance=1e-9)
    torch.testing.assert_close(found.eigenvalues, largest(exact, 5), rtol=1e-10, atol=1e-12)
    assert torch.linalg.eigvalsh(exact)[0] < -1e-3  # a Hessian, not just its positive part


def test_float32_agrees_to_its_precision() -> None:
    x, y = images()
    exact = full_hessian(make_net(), x, y)
    operator = hessian_operator(make_net(torch.float32), [(x.float(), y)], cross_entropy)
    found = lanczos(operator, draw(operator.size, dtype=torch.float32), top=3)
    torch.testing.assert_close(found.eigenvalues, largest(exact, 3), rtol=1e-4, atol=0)


@pytest.mark.parametrize("ggn", [False, True])
@pytest.mark.parametrize("memory", [0, None, float("inf")], ids=["made anew", "half", "kept"])
@pytest.mark.parametrize("sizes", [(20,), (1,) * 20, (9, 9, 2), (1, 19)], ids=str)
def test_does_not_depend_on_how_data_are_cut_or_kept(sizes: tuple[int, ...], memory: float | None, ggn: bool) -> None:
    net, (x, y) = make_net(), images()
    v = draw(sum(p.numel() for p in net.parameters()))
    whole = hessian_operator(net, [(x, y)], cross_entropy, ggn=ggn)(v)
    parts = hessian_operator(net, iter(cut(x, y, *sizes)), cross_entropy, ggn=ggn, memory=memory)
    torch.testing.assert_close(parts(v), whole, rtol=1e-11, atol=1e-13)
    torch.testing.assert_close(parts(v), whole, rtol=1e-11, atol=1e-13)  # a kept graph serves again
    assert parts.kept == (0 if memory == 0 else len(sizes))


def test_graphs_are_kept_as_far_as_memory_goes() -> None:
    net, (x, y) = make_net(), images()
    batches = cut(x, y, 5, 5, 5, 5)
    kept = [hessian_operator(net, batches, cross_entropy, memory=m).kept for m in range(0, 400_000, 4000)]
    assert kept == sorted(kept)
    assert set(kept) == {0, 1, 2, 3, 4}


def test_gauss_newton_is_the_hessian_of_a_linear_softmax_model() -> None:
    model, (x, y) = nn.Sequential(nn.Flatten(), nn.Linear(16, 3)).double(), images()
    hessian, gauss_newton = (dense(hessian_operator(model, [(x, y)], cross_entropy, ggn=g)) for g in (False, True))
    assert hessian.abs().max() > 1e-2
    torch.testing.assert_close(gauss_newton, hessian, rtol=1e-11, atol=1e-13)


def test_gauss_newton_is_positive_and_has_its_closed_form() -> None:
    net, (x, y) = make_net().eval(), images()
    found = dense(hessian_operator(net, cut(x, y, 13, 7), cross_entropy, ggn=True))
    parameters = {k: v.detach() for k, v in net.named_parameters()}
    jacobian = torch.func.jacrev(lambda p: torch.func.functional_call(net, p, (x,)))(parameters)
    j = torch.cat([part.flatten(2) for part in jacobian.values()], dim=2)
    p = net(x).softmax(1).detach()
    bend = torch.diag_embed(p) - p[:, :, None] * p[:, None, :]
    exact = torch.einsum("nki,nkl,nlj->ij", j, bend, j) / len(x)
    torch.testing.assert_close(found, exact, rtol=1e-10, atol=1e-13)
    assert torch.linalg.eigvalsh(found)[0] > -1e-12
    assert torch.linalg.eigvalsh(dense(hessian_operator(net, [(x, y)], cross_entropy)))[0] < -1e-3


def test_model_is_given_back_as_it_was() -> None:
    net, (x, y) = make_net(), images()
    net.train()
    net.norm.eval()
    net.conv.bias.requires_grad_(False)
    net.head.weight.grad = torch.ones_like(net.head.weight)
    before = copy.deepcopy(net.state_dict())
    operator = hessian_operator(net, cut(x, y, 10, 10), cross_entropy, memory=0)
    operator(draw(operator.size))
    assert [m.training for m in (net, net.conv, net.norm, net.drop)] == [True, True, False, True]
    assert [name for name, p in net.named_parameters() if not p.requires_grad] == ["conv.bias"]
    assert torch.equal(net.head.weight.grad, torch.ones_like(net.head.weight))
    assert net.conv.weight.grad is None
    assert all(torch.equal(before[k], v) for k, v in net.state_dict().items())
    assert torch.is_grad_enabled()


def test_training_mode_makes_no_difference() -> None:
    net, (x, y) = make_net(), images()
    v = draw(sum(p.numel() for p in net.parameters()))
    first = hessian_operator(net.train(), [(x, y)], cross_entropy)(v)
    assert torch.equal(first, hessian_operator(net.eval(), [(x, y)], cross_entropy)(v))


def test_order_in_memory_makes_no_difference_and_costs_nothing() -> None:
    """Convolutions see weights in plain order: twice differentiated in channels-last order they would crawl."""
    x, y = images()
    plain, last = make_net(), make_net().to(memory_format=torch.channels_last)
    with torch.no_grad():
        for net in (plain, last):
            net.conv = nn.Conv2d(2, 3, 3, padding=1).double()
            net.conv.weight.copy_(torch.linspace(-1, 1, 54).view(3, 2, 3, 3))
            net.conv.bias.zero_()
    last = last.to(memory_format=torch.channels_last)
    seen: list[bool] = []
    x = torch.cat([x, 1 - x], 1)
    last.conv.register_forward_pre_hook(lambda module, _: seen.append(module.weight.is_contiguous()))
    products = [
        hessian_operator(net, [(x, y)], cross_entropy)(torch.ones(size_of(net)).double()) for net in (plain, last)
    ]
    torch.testing.assert_close(products[1], products[0], rtol=1e-12, atol=1e-12)
    assert all(seen)
    assert not last.conv.weight.is_contiguous()  # the model's own weights lie as they lay


def test_works_where_gradients_are_switched_off() -> None:
    net, (x, y) = make_net(), images()
    v = draw(sum(p.numel() for p in net.parameters()))
    expected = hessian_operator(net, [(x, y)], cross_entropy)(v)
    with torch.no_grad():
        assert torch.equal(hessian_operator(net, [(x, y)], cross_entropy, memory=0)(v), expected)


def test_chosen_parameters_give_their_block() -> None:
    net, (x, y) = make_net(), images()
    exact = full_hessian(net, x, y)
    places = torch.arange(len(exact)).split([p.numel() for p in net.parameters()])
    block = torch.cat([places[i] for i, (name, _) in enumerate(net.named_parameters()) if "head" in name])
    operator = hessian_operator(net, [(x, y)], cross_entropy, parameters=net.head.parameters())
    torch.testing.assert_close(dense(operator), exact[block][:, block], rtol=1e-10, atol=1e-12)


def test_frozen_parameters_are_left_out_unless_all_are_frozen() -> None:
    net, (x, y) = make_net(), images()
    everything = sum(p.numel() for p in net.parameters())
    net.conv.requires_grad_(False)
    assert hessian_operator(net, [(x, y)], cross_entropy).size == everything - 30
    net.requires_grad_(False)
    operator = hessian_operator(net, [(x, y)], cross_entropy)
    assert operator.size == everything
    assert operator(draw(everything)).abs().max() > 0


def test_shared_weights_count_once() -> None:
    class Shared(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.one = nn.Linear(3, 3).double()
            self.two = nn.Linear(3, 3).double()
            self.two.weight = self.one.weight

        def forward(self, x: Tensor) -> Tensor:
            logits: Tensor = self.two(self.one(x).tanh())
            return logits

    model, x, y = Shared(), draw(8, 3), torch.arange(8) % 3
    operator = hessian_operator(model, [(x, y)], cross_entropy)
    assert operator.size == 15
    torch.testing.assert_close(dense(operator), full_hessian(model, x, y), rtol=1e-10, atol=1e-12)


def test_attention_can_be_differentiated_twice() -> None:
    class Attention(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.qkv, self.head = nn.Linear(4, 12), nn.Linear(4, 3)

        def forward(self, x: Tensor) -> Tensor:
            q, k, v = self.qkv(x.flatten(1, 2)).chunk(3, dim=-1)
            logits: Tensor = self.head(F.scaled_dot_product_attention(q, k, v).mean(1))
            return logits

    model, (x, y) = Attention().double(), images(6)
    operator = hessian_operator(model, [(x, y)], cross_entropy)
    v = draw(operator.size)
    h = 1e-5 * v
    gradients = []
    for sign in (1, -1):
        moved = copy.deepcopy(model)
        nn.utils.vector_to_parameters(nn.utils.parameters_to_vector(moved.parameters()) + sign * h, moved.parameters())
        grads = torch.autograd.grad(F.cross_entropy(moved(x), y), list(moved.parameters()))
        gradients.append(torch.cat([g.flatten() for g in grads]))
    torch.testing.assert_close(operator(v), (gradients[0] - gradients[1]) / 2e-5, rtol=1e-5, atol=1e-8)


def test_a_loss_without_curvature_has_none() -> None:
    model, x, y = nn.Linear(3, 2).double(), draw(5, 3), torch.zeros(5)
    for ggn in (False, True):
        operator = hessian_operator(model, [(x, y)], lambda out, _: out.sum(1), ggn=ggn)
        assert torch.equal(operator(draw(8)), torch.zeros(8).double())


@pytest.mark.parametrize(
    ("last", "message"),
    [
        (lambda z: z.detach(), "no gradient flows from the outputs (torch.float64)"),
        (lambda z: z.argmax(1), "no gradient flows from the outputs (torch.int64)"),
        (lambda z: (z, z), "the model gives a tuple, not a tensor"),
        (lambda z: Once.apply(z), "cannot be differentiated twice"),
    ],
    ids=["detached", "whole numbers", "tuple", "once"],
)
def test_why_there_is_no_hessian_is_said(last: Callable[[Tensor], Any], message: str) -> None:
    class Broken(nn.Linear):
        def forward(self, x: Tensor) -> Any:
            return last(super().forward(x))

    with pytest.raises(NoSpectrum) as error:
        hessian_operator(Broken(3, 2).double(), [(draw(5, 3), torch.zeros(5).long())], cross_entropy)(draw(8))
    assert message in str(error.value)


def test_bad_input_is_named() -> None:
    model, x, y = nn.Linear(3, 2), torch.ones(4, 3), torch.zeros(4).long()
    with pytest.raises(HoldfastError, match="at least one sample, got none"):
        hessian_operator(model, [], cross_entropy)
    with pytest.raises(HoldfastError, match=r"must have 8 numbers, got shape \(7,\)"):
        hessian_operator(model, [(x, y)], cross_entropy)(torch.ones(7))
    with pytest.raises(HoldfastError, match="must be among model.parameters"):
        hessian_operator(model, [(x, y)], cross_entropy, parameters=[torch.ones(2)])
    with pytest.raises(NoSpectrum, match="all be float32 or all float64, on one device, got torch.bfloat16 on cpu"):
        hessian_operator(nn.Linear(3, 2).bfloat16(), [(x, y)], cross_entropy)
    with pytest.raises(NoSpectrum, match="no parameters to differentiate by"):
        hessian_operator(nn.Flatten(), [(x, y)], cross_entropy)


class Once(torch.autograd.Function):
    """x² with a backward pass that cannot be differentiated."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.save_for_backward(x)
        return x**2

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        (x,) = ctx.saved_tensors
        return 2 * x * grad


def test_eigenvalues_of_a_model_are_those_of_its_full_hessian() -> None:
    net = make_net()
    x, y = images()
    found = eigenvalues(net, cut(x, y, 12, 8), top=3, tolerance=1e-8)
    expected = torch.linalg.eigvalsh(full_hessian(net, x, y)).flip(0)[:3]
    torch.testing.assert_close(found.eigenvalues, expected, rtol=1e-6, atol=1e-8)
    assert bool(found.converged.all())
