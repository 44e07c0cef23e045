"""Modules that callers bring along: looked at before training, and trained as they are."""

from __future__ import annotations

import copy
from types import SimpleNamespace

import pytest
import torch
from torch import Tensor, nn

from holdfast.errors import HoldfastError
from holdfast.train import fit
from tests.conftest import make_data, same_weights
from tests.train.plain import PLAIN, Linear


class Answers(Linear):
    """Logits inside of something else, as libraries of transformers give them."""

    def forward(self, x: Tensor) -> SimpleNamespace:
        return SimpleNamespace(logits=super().forward(x))


class Pair(nn.Module):
    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        return x, x


@pytest.mark.parametrize(
    ("model", "message"),
    [
        (
            Linear,
            r"model must be a name such as 'convnet', or a module \(make one of this class\), got <class .*Linear",
        ),
        (5, "model must be a name such as 'convnet', or a module, got 5"),
        (None, "or a module, got None"),
        (["convnet"], r"or a module, got \['convnet'\]"),
        (lambda x: x, "or a module, got <function"),
        ("", "unknown model ''"),
        (
            Linear(classes=4),
            r"this Linear must give logits of shape \(2, 3\) for 2 images of 3 classes, and gives \(2, 4\)",
        ),
        (Linear(inputs=9), r"this Linear cannot take images of shape \(1, 8, 8\) \(C, H, W\): .*mat1 and mat2"),
        (Pair(), "and gives tuple; change its last layer"),
        (Answers(), "and gives SimpleNamespace; wrap it so that it returns .logits"),
        (nn.Sequential(nn.AdaptiveAvgPool2d((1, 3)), nn.Flatten()), "this Sequential has no parameter to train"),
    ],
)
def test_what_is_no_model_for_the_data_is_refused(model: object, message: str) -> None:
    with pytest.raises(HoldfastError, match=message):
        fit(make_data(), model=model, **PLAIN)  # type: ignore[arg-type]


def test_a_module_is_looked_at_without_changing_what_it_becomes() -> None:
    torch.manual_seed(0)
    lazy, plain = nn.Sequential(nn.Flatten(), nn.LazyLinear(3)), Linear()
    before = copy.deepcopy(plain)
    assert fit(make_data(), model=lazy, **PLAIN).model is lazy
    assert fit(make_data(), model=plain, lr=0.0, **PLAIN).model is plain
    assert same_weights(before, plain)


def test_a_module_is_looked_at_in_the_precision_it_is_trained_in() -> None:
    fit(make_data(), model=Linear().bfloat16(), precision="bf16", **PLAIN)


class Complex(Linear):
    """A filter in the frequency domain before the layer."""

    def __init__(self) -> None:
        super().__init__()
        self.filter = nn.Parameter(torch.ones(8, 8, dtype=torch.complex64))

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(torch.fft.ifft2(torch.fft.fft2(x) * self.filter).real)


@pytest.mark.parametrize("optimizer", ["sgd", "adam", "adamw"])
def test_complex_weights_are_trained(optimizer: str) -> None:
    model = Complex()
    fit(make_data(), model=model, optimizer=optimizer, lr=0.01, **PLAIN)
    assert not torch.equal(model.filter, torch.ones_like(model.filter))
    assert bool(model.filter.isfinite().all())
