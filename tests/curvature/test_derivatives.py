"""Convolutions of our own have the derivatives of torch's, of the first order to the third."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from holdfast.curvature.operator import many_derivatives

CASES: dict[str, tuple[Callable[..., Tensor], tuple[int, ...], tuple[int, ...], dict[str, Any]]] = {
    "plain": (F.conv2d, (2, 3, 6, 5), (4, 3, 3, 3), {}),
    "padded": (F.conv2d, (2, 3, 6, 5), (4, 3, 3, 3), {"padding": 1}),
    "strided": (F.conv2d, (2, 3, 7, 6), (4, 3, 3, 3), {"stride": 2, "padding": (1, 0)}),
    "strided, a row left over": (F.conv2d, (2, 3, 8, 8), (4, 3, 3, 3), {"stride": (2, 3), "padding": 1}),
    "dilated": (F.conv2d, (2, 3, 8, 8), (4, 3, 3, 3), {"dilation": 2, "padding": 2}),
    "grouped": (F.conv2d, (2, 4, 5, 5), (6, 2, 3, 3), {"groups": 2, "padding": 1}),
    "depthwise": (F.conv2d, (2, 4, 5, 5), (4, 1, 3, 3), {"groups": 4}),
    "one by one": (F.conv2d, (2, 3, 4, 4), (5, 3, 1, 1), {"stride": 2}),
    "a line": (F.conv1d, (2, 3, 9), (4, 3, 3), {"padding": [1]}),
    "a volume": (F.conv3d, (2, 2, 4, 4, 4), (3, 2, 2, 2, 2), {"stride": 2}),
    "padding by name": (F.conv2d, (2, 3, 6, 5), (4, 3, 3, 3), {"padding": "same"}),
    "one image without a batch": (F.conv2d, (3, 6, 5), (4, 3, 3, 3), {"padding": 1}),
}


def derivatives(function: Callable[..., Tensor], leaves: Sequence[Tensor], **settings: Any) -> list[Tensor]:
    """The output, and gradients of the first three orders along directions that mix all operands."""
    directions = [torch.randn_like(leaf) for leaf in leaves]
    output = function(*leaves, **settings)
    scale = torch.linspace(0.5, 2, output.numel(), device=output.device).view_as(output)
    value, found = (output.tanh() * scale).sum(), [output]
    for _ in range(3):
        slopes = torch.autograd.grad(value, leaves, create_graph=True, allow_unused=True)
        found += [slope for slope in slopes if slope is not None]
        value = torch.stack([(s * d).sum() for s, d in zip(slopes, directions, strict=True) if s is not None]).sum()
    return [tensor.detach() for tensor in found]


@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
@pytest.mark.parametrize("name", CASES)
def test_three_orders_of_derivatives_are_torchs(name: str, device: str) -> None:
    function, x_shape, w_shape, settings = CASES[name]
    torch.manual_seed(0)
    leaves = [
        torch.randn(shape, dtype=torch.float64, device=device, requires_grad=True)
        for shape in (x_shape, w_shape, (w_shape[0],))
    ]
    torch.manual_seed(1)
    expected = derivatives(function, leaves, **settings)
    torch.manual_seed(1)
    with many_derivatives():
        found = derivatives(function, leaves, **settings)
    assert len(found) == len(expected) == 1 + 3 * 3
    for own, theirs in zip(found, expected, strict=True):
        torch.testing.assert_close(own, theirs, rtol=1e-11, atol=1e-11)


def nodes(tensor: Tensor) -> set[str]:
    """Names of all functions behind a tensor."""
    open_, seen = [tensor.grad_fn], set()
    while open_:
        node = open_.pop()
        if node is not None and node not in seen:
            seen.add(node)
            open_ += [following for following, _ in node.next_functions]
    return {node.name() for node in seen}


def test_no_gradient_in_a_network_is_left_to_torchs_second_derivative() -> None:
    model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU(), nn.Conv2d(4, 2, 1, bias=False), nn.Flatten())
    x = torch.rand(2, 3, 6, 6)

    def slope() -> Tensor:
        found = torch.autograd.grad(model(x).square().sum(), list(model.parameters()), create_graph=True)
        return torch.stack([f.sum() for f in found]).sum()

    assert any("ConvolutionBackwardBackward" in name for name in nodes(slope()))
    with many_derivatives():
        inside = slope()
    assert not any("ConvolutionBackward" in name for name in nodes(inside))
    assert any("ConvolutionBackwardBackward" in name for name in nodes(slope())), "the swap outlives its region"


def test_operands_that_need_no_gradient_cost_none() -> None:
    weight = torch.randn(4, 3, 3, 3)
    x = torch.rand(2, 3, 6, 6, requires_grad=True)
    with many_derivatives():
        (by_input,) = torch.autograd.grad(F.conv2d(x, weight).sum(), x, create_graph=True)
    assert not by_input.requires_grad
