"""Losses and the terms of the ELBO against closed forms, torch.distributions and numerical derivatives."""

from __future__ import annotations

import math

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor
from torch.distributions import MultivariateNormal, Normal, kl_divergence

from holdfast import losses
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


def draw(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def test_kl_is_that_of_torch_distributions() -> None:
    mean, log_var = draw(6, 4), draw(6, 4, seed=1)
    truth = kl_divergence(Normal(mean, (0.5 * log_var).exp()), Normal(0.0, 1.0)).sum(1)
    torch.testing.assert_close(losses.kl_to_standard_normal(mean, log_var), truth)


def test_nll_is_that_of_torch_distributions() -> None:
    x, decoded = draw(3, 2, 4, 4), draw(3, 2, 4, 4, seed=1)
    truth = -Normal(decoded, 0.3).log_prob(x).flatten(1).sum(1)
    torch.testing.assert_close(losses.gaussian_nll(x, decoded, math.log(0.3)), truth)


def test_the_reports_sigma_makes_the_reconstruction_a_squared_error() -> None:
    """Eq. (3): with σ² = 1/2 the term is Σ (x − μ)², but for D/2·log π, which the report drops."""
    x, decoded = draw(3, 1, 4, 4), draw(3, 1, 4, 4, seed=1)
    nll = losses.gaussian_nll(x, decoded, math.log(losses.REPORT_SIGMA))
    torch.testing.assert_close(nll, losses.squared_error(x, decoded) + 8 * math.log(math.pi))


def test_log_normal_is_that_of_torch_distributions() -> None:
    z, mean, log_var = (draw(5, 3, seed=s) for s in range(3))
    truth = Normal(mean, (0.5 * log_var).exp()).log_prob(z).sum(1)
    torch.testing.assert_close(losses.log_normal(z, mean, log_var), truth)


def test_gradients_flow_through_the_draw_to_mean_and_variance() -> None:
    mean, log_var, noise = draw(4, 2).requires_grad_(), draw(4, 2, seed=1).requires_grad_(), draw(4, 2, seed=2)
    losses.reparameterise(mean, log_var, noise).sum().backward()
    torch.testing.assert_close(mean.grad, torch.ones(4, 2, dtype=torch.float64))
    torch.testing.assert_close(log_var.grad, 0.5 * (0.5 * log_var).exp() * noise)


class LinearVAE:
    """p(x|z) = N(W z + b, σ²) is probabilistic PCA: its likelihood is N(b, W Wᵀ + σ²) exactly (Tipping & Bishop)."""

    def __init__(self) -> None:
        self.weight, self.bias, self.sigma = draw(6, 2), draw(6, seed=1), 0.4
        self.x = self.bias + draw(50, 2, seed=2) @ self.weight.T + self.sigma * draw(50, 6, seed=3)

    def log_likelihood(self) -> Tensor:
        covariance = self.weight @ self.weight.T + self.sigma**2 * torch.eye(6, dtype=torch.float64)
        return MultivariateNormal(self.bias, covariance).log_prob(self.x)

    def posterior(self) -> tuple[Tensor, Tensor]:
        """The exact p(z|x): N(M⁻¹ Wᵀ (x − b), σ² M⁻¹) with M = Wᵀ W + σ²."""
        inner = torch.linalg.inv(self.weight.T @ self.weight + self.sigma**2 * torch.eye(2, dtype=torch.float64))
        return (self.x - self.bias) @ self.weight @ inner, self.sigma**2 * inner

    def log_weights(self, mean: Tensor, log_var: Tensor, draws: int) -> Tensor:
        found = []
        for seed in range(draws):
            z = losses.reparameterise(mean, log_var, draw(50, 2, seed=100 + seed))
            nll = losses.gaussian_nll(self.x, z @ self.weight.T + self.bias, math.log(self.sigma))
            found.append(losses.log_normal(z) - nll - losses.log_normal(z, mean, log_var))
        return torch.stack(found)

    def bound(self, mean: Tensor, covariance: Tensor) -> Tensor:
        """The exact ELBO for q = N(mean, covariance): the expected square has a trace term."""
        nll = losses.gaussian_nll(self.x, mean @ self.weight.T + self.bias, math.log(self.sigma))
        nll = nll + 0.5 * torch.trace(self.weight @ covariance @ self.weight.T) / self.sigma**2
        log_var = covariance.diagonal().log().expand_as(mean)
        return -(nll + losses.kl_to_standard_normal(mean, log_var))


def test_a_linear_vae_reaches_the_likelihood_of_probabilistic_pca_at_the_exact_posterior() -> None:
    """Columns of W made orthogonal: the posterior is then diagonal, and the bound must be tight."""
    vae = LinearVAE()
    vae.weight = torch.linalg.qr(vae.weight)[0] * torch.tensor([2.0, 0.7], dtype=torch.float64)
    mean, covariance = vae.posterior()
    torch.testing.assert_close(vae.bound(mean, covariance), vae.log_likelihood())


def test_any_other_posterior_stays_below_the_likelihood() -> None:
    vae = LinearVAE()
    mean, covariance = vae.posterior()
    diagonal = covariance.diagonal().diag()
    for other in (mean, mean + 0.3, torch.zeros_like(mean)):
        assert (vae.bound(other, diagonal) < vae.log_likelihood()).all()


def test_the_importance_weighted_bound_rises_from_the_elbo_to_the_likelihood() -> None:
    vae = LinearVAE()
    mean, covariance = vae.posterior()
    log_var = covariance.diagonal().log().expand_as(mean) + 0.5
    weights = vae.log_weights(mean + 0.1, log_var, 4000)
    exact = vae.bound(mean + 0.1, log_var[0].exp().diag()).mean()
    one = weights.mean()  # the average single-draw bound
    assert float(one) == pytest.approx(float(exact), abs=0.02)
    ten = torch.stack([losses.importance_weighted_bound(part) for part in weights.split(10)]).mean()
    many, truth = losses.importance_weighted_bound(weights).mean(), vae.log_likelihood().mean()
    assert exact < ten < many
    assert float(many) == pytest.approx(float(truth), abs=0.02)
