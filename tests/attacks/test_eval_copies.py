"""A copy gives the numbers of its original in evaluation mode under autocast, bit for bit, and follows its weights."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from holdfast.attacks.bias_attack import EvalCopies, EvalCopy
from holdfast.models import build_model

MODELS = ["cifar-resnet18", "convnet", "torchvision:resnet18"]


def make(name: str) -> nn.Module:
    torch.manual_seed(0)
    model = build_model(name, num_classes=5, mean=(0.5,) * 3, std=(0.25,) * 3).model
    model.train()
    model(torch.rand(8, 3, 32, 32))  # statistics that are not those of a fresh network
    return model


def outputs(network: nn.Module, x: Tensor) -> tuple[Tensor, Tensor]:
    """Logits, and the gradient of their loss with respect to the images."""
    x = x.clone().requires_grad_()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        logits = network(x)
    (gradient,) = torch.autograd.grad(F.cross_entropy(logits.float(), torch.arange(len(x))), x)
    return logits.detach(), gradient


@pytest.mark.parametrize("name", MODELS)
def test_the_copy_is_the_original_in_evaluation_mode_through_training(name: str) -> None:
    model = make(name)
    copy = EvalCopy(model, torch.bfloat16)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    x = torch.rand(4, 3, 32, 32)
    before = outputs(copy.refresh(), x)[0]
    for _ in range(2):
        optimizer.zero_grad()
        F.cross_entropy(model(x), torch.arange(4)).backward()
        optimizer.step()
    copies = outputs(copy.refresh(), x)
    model.eval()
    for own, expected in zip(copies, outputs(model, x), strict=True):
        assert torch.equal(own, expected)
    assert not torch.equal(copies[0], before)


def test_the_original_keeps_its_mode_and_its_gradients() -> None:
    model = make("convnet")
    copy = EvalCopy(model, torch.bfloat16)
    outputs(copy.refresh(), torch.rand(4, 3, 32, 32))
    assert model.training
    assert not copy.network.training
    assert all(p.requires_grad and p.grad is None and p.dtype == torch.float32 for p in model.parameters())
    assert not any(p.requires_grad for p in copy.network.parameters())


def test_without_autocast_there_is_nothing_to_cast() -> None:
    model, copies = make("convnet"), EvalCopies()
    assert copies.of(model, torch.device("cpu")) is model
    with torch.autocast("cpu", dtype=torch.bfloat16):
        copy = copies.of(model, torch.device("cpu"))
        assert copy is not model
        assert copies.of(model, torch.device("cpu")) is copy
