"""Attacks on many images: shown in small batches, filled up as they shrink, and the same images all along."""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor

from holdfast.attacks import (
    apgd,
    pgd,
    square,
)
from holdfast.attacks.objectives import filled
from holdfast.errors import HoldfastError
from tests.attacks.small import Linear, make_images, make_net, seeded

Attack = Callable[..., Tensor]


@pytest.mark.parametrize("attack", [pgd, apgd, square])
def test_early_stop_finds_the_same_errors(attack: Attack) -> None:
    x, y = make_images(2, 40), torch.arange(40) % 3
    model = Linear(3, x[0].numel())
    more: dict[str, Any] = {"radius": 0.06, "queries": 60} if attack is square else {"radius": 0.02, "steps": 12}
    errors = []
    for early in (False, True):
        found = attack(model, x, y, early_stop=early, generator=seeded(1), **more)
        errors.append(model(found).argmax(1) != y)
    assert 0 < int((model(x).argmax(1) != y).sum()) < int(errors[0].sum()) < 40
    difference = int((errors[0] != errors[1]).sum())
    assert difference == 0 if attack is not square else difference <= 3  # the search draws other numbers then


@pytest.mark.parametrize("attack", [pgd, apgd, square])
def test_batches_that_shrink_can_be_filled_up(attack: Attack, monkeypatch: pytest.MonkeyPatch) -> None:
    """As on a GPU: few sizes, the same images."""
    x, y = make_images(2, 40, torch.float64), torch.arange(40) % 3
    model = make_net(5, 3).double().eval()
    more: dict[str, Any] = {"radius": 0.06, "queries": 60} if attack is square else {"radius": 0.02, "steps": 12}
    sizes: set[int] = set()
    model.register_forward_pre_hook(lambda _, given: sizes.add(len(given[0])))
    plain = attack(model, x, y, early_stop=True, generator=seeded(1), **more)
    met = set(sizes)
    sizes.clear()
    module = sys.modules[attack.__module__]
    monkeypatch.setattr(module, "prepared", lambda model, x, mode, **_: partial(filled, model, len(x)))
    found = attack(model, x, y, early_stop=True, generator=seeded(1), **more)
    torch.testing.assert_close(found, plain, rtol=0, atol=1e-12)
    assert sizes <= {1, 2, 4, 8, 16, 32, 40}
    assert len(met) > len(sizes)


@pytest.mark.parametrize("early_stop", [False, True])
@pytest.mark.parametrize("dtype", [torch.float16, torch.float64])
@pytest.mark.parametrize("attack", [pgd, apgd, square])
def test_many_images_in_small_batches(attack: Attack, dtype: torch.dtype, early_stop: bool) -> None:
    x, y = make_images(2, 40, dtype), torch.arange(40) % 3
    model = make_net(5, 3).to(dtype).eval()
    sizes: set[int] = set()
    model.register_forward_pre_hook(lambda _, given: sizes.add(len(given[0])))
    more: dict[str, Any] = {"radius": 0.06, "queries": 60} if attack is square else {"radius": 0.02, "steps": 12}
    whole = attack(model, x, y, early_stop=early_stop, generator=seeded(1), **more)
    assert max(sizes) == 40
    sizes.clear()
    found = attack(model, x, y, early_stop=early_stop, batch_size=7, generator=seeded(1), **more)
    assert max(sizes) == 7
    if dtype == torch.float64:
        torch.testing.assert_close(found, whole, rtol=0, atol=1e-12)
    wrong = [int((model(points).argmax(1) != y).sum()) for points in (whole, found)]
    assert abs(wrong[0] - wrong[1]) <= 2  # short numbers round otherwise in other batches


def test_a_batch_of_none_is_refused() -> None:
    with pytest.raises(HoldfastError, match="batch_size must be >= 1, got 0"):
        pgd(make_net(1, 3), make_images(1, 2), torch.tensor([0, 1]), radius=0.1, batch_size=0)


@pytest.mark.parametrize("n", [1, 2, 3, 5, 11, 12])
def test_a_filled_batch_has_the_logits_and_gradients_of_its_own_images(n: int) -> None:
    model = make_net(3, 4).double().eval()
    x = make_images(1, n, torch.float64).requires_grad_()
    ends = [model(x), filled(model, 12, x)]
    assert ends[1].shape == (n, 4)
    gradient_of = [torch.autograd.grad(end.square().sum(), x)[0] for end in ends]
    torch.testing.assert_close(ends[1], ends[0], rtol=0, atol=1e-14)
    torch.testing.assert_close(gradient_of[1], gradient_of[0], rtol=0, atol=1e-14)


def test_batches_are_filled_to_few_sizes() -> None:
    shown: list[int] = []

    def model(x: Tensor) -> Tensor:
        shown.append(len(x))
        return x.flatten(1)

    for n in range(1, 13):
        filled(model, 12, torch.zeros(n, 1, 2, 2))
    assert shown == [1, 2, 4, 4, 8, 8, 8, 8, 12, 12, 12, 12]


@pytest.mark.parametrize("attack", [pgd, apgd])
def test_no_more_than_a_batch_is_differentiated_at_once(attack: Callable[..., Tensor]) -> None:
    """Each part's gradient is taken before the next is shown: memory is that of a batch."""
    told: list[str] = []

    def model(x: Tensor) -> Tensor:
        out = x.flatten(1)[:, :2] * 1
        if out.requires_grad:
            told.append("shown")
            out.register_hook(lambda _: told.append("differentiated"))
        return out

    attack(model, make_images(2, 5), torch.tensor([0, 1, 0, 1, 0]), radius=0.1, steps=2, batch_size=2)
    assert told == ["shown", "differentiated"] * 6, "two gradients of three parts each"
