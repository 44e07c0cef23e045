"""The VAEs: the report's layer for layer, ours for any size, and both against the pure terms."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor, nn

from holdfast.errors import HoldfastError
from holdfast.losses import gaussian_nll, kl_to_standard_normal, squared_error
from holdfast.models.vae import LOWEST_LOG_SIGMA, VAE, VAESettings, report_settings
from holdfast.train.unlabelled import VAEObjective
from holdfast.types import View, Views


def images(n: int = 3, shape: tuple[int, int, int] = (1, 32, 32)) -> Tensor:
    return torch.rand(n, *shape, generator=torch.Generator().manual_seed(0))


def test_the_reports_network_to_the_letter() -> None:
    vae = VAE(report_settings(latent=16))
    down = [m for m in vae.encoder.modules() if isinstance(m, nn.Conv2d)]
    up = [m for m in vae.decoder.modules() if isinstance(m, nn.ConvTranspose2d)]
    assert [(m.in_channels, m.out_channels) for m in down] == [(1, 32), (32, 64), (64, 128)]
    assert [(m.in_channels, m.out_channels) for m in up] == [(128, 64), (64, 32), (32, 1)]
    for layer in (*down, *up):
        assert (layer.kernel_size, layer.stride, layer.padding) == ((3, 3), (1, 1), (0, 0))
    assert vae.inner == (128, 26, 26)
    assert vae.encoder(images()).shape == (3, 128, 26, 26)
    assert (vae.to_mean.in_features, vae.to_mean.out_features) == (128 * 26 * 26, 16)
    assert (vae.from_latent.in_features, vae.from_latent.out_features) == (16, 128 * 26 * 26)
    assert vae.sigma == pytest.approx(math.sqrt(0.5))
    assert "log_sigma" not in dict(vae.named_parameters())


def test_the_reports_decoder_gives_the_mean_of_a_gaussian_as_it_is() -> None:
    """No sigmoid, of which the report says nothing: Adam's first steps at its 1e-3 would end where one is flat."""
    vae, z = VAE(report_settings(latent=2)), torch.zeros(1, 2)
    before = vae.decode(z)
    last = vae.decoder[-1]
    assert isinstance(last, nn.ConvTranspose2d)
    assert last.bias is not None
    with torch.no_grad():
        last.bias.sub_(7)
    torch.testing.assert_close(vae.decode(z), before - 7)


@pytest.mark.parametrize("shape", [(1, 32, 32), (3, 16, 16), (1, 7, 7), (1, 9, 14), (3, 33, 2)])
def test_ours_gives_back_images_of_any_size(shape: tuple[int, int, int]) -> None:
    vae = VAE(VAESettings(shape, latent=3))
    assert vae.decode(vae(images(shape=shape))).shape == (3, *shape)
    assert "log_sigma" in dict(vae.named_parameters())


def test_terms_are_the_pure_functions_of_what_was_encoded_and_decoded() -> None:
    vae, x = VAE(VAESettings((1, 8, 8), latent=2, beta=3.0)), images(4, (1, 8, 8))
    noise = torch.randn(4, 2, generator=torch.Generator().manual_seed(1))
    mean, log_var = vae.encode(x)
    decoded = vae.decode(mean + (0.5 * log_var).exp() * noise)
    terms = vae.terms(x, noise)
    torch.testing.assert_close(terms.reconstruction, gaussian_nll(x, decoded, vae.log_sigma))
    torch.testing.assert_close(terms.kl, kl_to_standard_normal(mean, log_var))
    objective, views = VAEObjective(vae.settings), Views((View(x, torch.zeros(4)),), extra={"noise": noise})
    loss = objective.loss(objective.forward(vae, views, state=None), views)  # type: ignore[arg-type]
    torch.testing.assert_close(loss, (terms.reconstruction + 3 * terms.kl).mean())
    torch.testing.assert_close(terms.elbo, -(terms.reconstruction + terms.kl))
    torch.testing.assert_close(vae.terms(x).decoded, vae.decode(mean))


def test_one_draw_of_the_importance_weighted_bound_has_the_elbo_as_its_mean() -> None:
    vae, x = VAE(VAESettings((1, 8, 8), latent=2, sigma=0.5)), images(2, (1, 8, 8)).repeat(2000, 1, 1, 1)
    noise = torch.randn(10, 4000, 2, generator=torch.Generator().manual_seed(1))
    with torch.no_grad():
        one = vae.importance_weighted(x, noise[:1]).view(2000, 2).mean(0)
        mean, log_var = vae.encode(x)
        nll = gaussian_nll(x, vae.decode(mean + (0.5 * log_var).exp() * noise[1]), vae.log_sigma)
        exact = -(nll + kl_to_standard_normal(mean, log_var)).view(2000, 2).mean(0)
        ten = vae.importance_weighted(x, noise).view(2000, 2).mean(0)
    torch.testing.assert_close(one, exact, rtol=0, atol=0.1)
    assert (ten >= one - 0.1).all()


def test_a_learned_sigma_settles_at_the_mean_squared_error() -> None:
    """The maximum of the likelihood in σ² is the mean squared error; everything else is held still."""
    vae, x = VAE(VAESettings((1, 8, 8), latent=2)), images(16, (1, 8, 8))
    optimizer = torch.optim.Adam([vae.log_sigma], lr=0.05)
    for _ in range(120):
        optimizer.zero_grad()
        (-vae.terms(x, torch.zeros(16, 2)).elbo).mean().backward()
        optimizer.step()
    truth = float(squared_error(x, vae.terms(x).decoded.detach()).mean() / 64)
    assert vae.sigma**2 == pytest.approx(truth, rel=1e-2)


def test_sigma_has_a_floor() -> None:
    vae = VAE(VAESettings((1, 8, 8)))
    with torch.no_grad():
        vae.log_sigma.fill_(-1e9)
    assert vae.sigma == pytest.approx(math.exp(LOWEST_LOG_SIGMA))
    assert torch.isfinite(vae.terms(images(2, (1, 8, 8))).reconstruction).all()


def test_settings_survive_json() -> None:
    settings = VAESettings((3, 9, 8), network="report", latent=5, sigma=0.3, beta=2.0)
    assert VAESettings.from_json(settings.to_json()) == settings


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"network": "strided2"}, "unknown VAE network 'strided2'; did you mean 'strided'?"),
        ({"latent": 0}, "latent must be in 1..4096, got 0"),
        ({"sigma": 0.0}, "sigma must be > 0, or None to learn it, got 0.0"),
        ({"beta": -1.0}, "beta must be >= 0, got -1.0"),
        ({"network": "report", "shape": (1, 6, 32)}, "at least 7x7 pixels, got 6x32"),
    ],
)
def test_bad_settings_are_refused(changes: dict[str, object], message: str) -> None:
    with pytest.raises(HoldfastError, match=message.replace("?", ".")):
        VAESettings(**{"shape": (1, 32, 32), **changes})  # type: ignore[arg-type]


@pytest.mark.parametrize("shape", [(3, 32, 32), (1, 28, 28)])
def test_colour_or_another_size_is_refused(shape: tuple[int, int, int]) -> None:
    with pytest.raises(HoldfastError, match="takes images of shape"):
        VAE(VAESettings((1, 32, 32)))(images(shape=shape))


def test_bytes_are_refused() -> None:
    with pytest.raises(HoldfastError, match="divide bytes by 255"):
        VAE(VAESettings((1, 8, 8)))(torch.zeros(1, 1, 8, 8, dtype=torch.uint8))
