"""Gradients are tried, not assumed."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from holdfast.errors import HoldfastError
from holdfast.models import NONE, PreprocessedModel
from holdfast.models.adapters import CallableModule
from holdfast.models.loaded_model import probe_gradients, sample_images, try_out

X = sample_images((1, 4, 4), torch.device("cpu"))


def balanced(x: Tensor) -> Tensor:
    """A binary classifier whose outputs always sum to zero."""
    margin = x.flatten(1).sum(1, keepdim=True)
    return torch.cat([margin, -margin], 1)


def rounded(x: Tensor) -> Tensor:
    return x.flatten(1).mul(255).round()


def cut(x: Tensor) -> Tensor:
    return x.flatten(1).detach()


def through_numpy(x: Tensor) -> Tensor:
    return torch.from_numpy(x.numpy()).flatten(1)


def roots(x: Tensor) -> Tensor:
    return (x.flatten(1) * 0).sqrt()


@pytest.mark.parametrize(
    ("function", "why"),
    [
        (balanced, None),  # a plain sum of the outputs would have no gradient
        (rounded, "zero everywhere"),
        (cut, "cut off from the images"),
        (through_numpy, "differentiating failed"),
        (roots, "not finite"),
    ],
)
def test_whether_gradients_flow_is_found_out(function: Callable[[Tensor], Tensor], why: str | None) -> None:
    found = probe_gradients(CallableModule(function), X)
    assert (found is None) if why is None else (found is not None and why in found)


def test_probing_leaves_no_gradient_behind() -> None:
    net = nn.Sequential(nn.Flatten(), nn.Linear(16, 3))
    assert probe_gradients(net, X) is None
    assert all(p.grad is None for p in net.parameters())
    with torch.no_grad():
        assert probe_gradients(net, X) is None


def test_a_network_that_cannot_take_the_images_is_named() -> None:
    model = PreprocessedModel(nn.Linear(7, 3), NONE, channels=1, size=None)
    with pytest.raises(HoldfastError, match=r"mine cannot take grey images of 4x4 pixels \(as 1 channels of 4x4\)"):
        try_out(model, X, "mine")
    with pytest.raises(HoldfastError, match="gives 1 rows of outputs for 2 images"):
        try_out(PreprocessedModel(CallableModule(lambda x: x.view(1, -1)), NONE, channels=1, size=None), X, "mine")
