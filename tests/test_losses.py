"""Losses against closed forms and numerical derivatives."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

from holdfast.losses import cross_entropy, generalized_cross_entropy


@pytest.fixture
def batch() -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    z = torch.randn(12, 5, generator=generator, dtype=torch.float64)
    return z.requires_grad_(), torch.randint(5, (12,), generator=generator)


@pytest.mark.parametrize("q", [0.1, 0.7, 1.0])
def test_gce_is_its_formula_and_has_its_gradient(batch, q: float) -> None:
    z, y = batch
    p = z.softmax(1).gather(1, y[:, None])[:, 0]
    loss = generalized_cross_entropy(z, y, q=q)
    torch.testing.assert_close(loss, (1 - p**q) / q, rtol=1e-12, atol=1e-12)
    assert torch.autograd.gradcheck(lambda z: generalized_cross_entropy(z, y, q=q), (z,))
    (ours,) = torch.autograd.grad(loss.sum(), z)
    (plain,) = torch.autograd.grad(F.cross_entropy(z, y, reduction="sum"), z)
    torch.testing.assert_close(ours, p.detach()[:, None] ** q * plain, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("q", [0.1, 0.7, 1.0])
def test_the_scaled_form_has_q_times_the_gradient(batch, q: float) -> None:
    z, y = batch
    p = z.softmax(1).gather(1, y[:, None])[:, 0].detach()
    scaled = generalized_cross_entropy(z, y, q=q, scaled=True)
    torch.testing.assert_close(scaled, q * p**q * cross_entropy(z, y), rtol=1e-12, atol=1e-12)
    (ours,) = torch.autograd.grad(scaled.sum(), z)
    (textbook,) = torch.autograd.grad(generalized_cross_entropy(z, y, q=q).sum(), z)
    torch.testing.assert_close(ours, q * textbook, rtol=1e-10, atol=1e-12)


def test_a_small_q_is_cross_entropy(batch) -> None:
    z, y = batch
    torch.testing.assert_close(generalized_cross_entropy(z, y, q=1e-7), cross_entropy(z, y), rtol=1e-5, atol=1e-5)


def test_sure_mistakes_stay_finite() -> None:
    z = torch.tensor([[200.0, 0.0]])
    assert float(generalized_cross_entropy(z, torch.tensor([1]))) == pytest.approx(1 / 0.7)
