"""Train a VAE on images without labels."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from holdfast.augment.basic import to_float
from holdfast.detect.features import Images, check_images
from holdfast.detect.loop import LoopSettings, Losses, optimise
from holdfast.errors import require
from holdfast.models.vae import VAE, VAESettings
from holdfast.rng import derive
from holdfast.train.precision import autocast, kernels

BOUNDS = ("elbo", "iwae", "reconstruction", "kl")


@dataclass(frozen=True, eq=False)
class TrainedVAE:
    """history: the mean loss, reconstruction and KL of each epoch."""

    model: VAE
    history: tuple[dict[str, float], ...]


def train_vae(
    images: Images,
    settings: VAESettings,
    loop: LoopSettings | None = None,
    *,
    bound: str = "elbo",
    samples: int = 5,
    device: str | torch.device = "cpu",
    on_epoch: Callable[[int, dict[str, float]], None] | None = None,
) -> TrainedVAE:
    """A VAE for these images.

    bound: what is maximised: ``elbo``, or ``iwae``, the importance-weighted bound with so many ``samples``; or, to
    see what each half of the ELBO does alone, ``reconstruction`` or ``kl``.
    """
    loop = loop or LoopSettings()
    device = torch.device(device)
    require(bound in BOUNDS, f"bound must be one of {', '.join(BOUNDS)}, got {bound!r}")
    require(samples >= 1, f"samples must be >= 1, got {samples}")
    x = resident(images, device)
    require(
        tuple(x.shape[1:]) == settings.shape,
        f"the VAE is for images of shape (C, H, W) {settings.shape}, these are {tuple(x.shape[1:])}",
    )
    with torch.random.fork_rng([device] if device.type == "cuda" else []):
        torch.manual_seed(derive(loop.seed, "vae/weights"))
        model = VAE(settings).to(device)
    if device.type == "cuda":
        model = model.to(memory_format=torch.channels_last)
    draw = torch.Generator(device).manual_seed(derive(loop.seed, "vae/noise"))
    latent = settings.latent

    def losses(index: Tensor) -> Losses:
        batch = to_float(x[index])
        if device.type == "cuda":
            batch = batch.contiguous(memory_format=torch.channels_last)
        with autocast(loop.precision, device):
            if bound == "iwae":
                noise = torch.randn(samples, len(batch), latent, device=device, generator=draw)
                return {"loss": -model.importance_weighted(batch, noise).mean()}
            noise = torch.randn(len(batch), latent, device=device, generator=draw)
            terms = model.terms(batch, noise)
        reconstruction, kl = terms.reconstruction.mean(), terms.kl.mean()
        loss = {
            "elbo": reconstruction + settings.beta * kl,
            "reconstruction": reconstruction,
            "kl": kl,
        }[bound]
        return {"loss": loss, "reconstruction": reconstruction, "kl": kl}

    # TF32 with bf16 only: fp32 means what it says
    with kernels(loop.precision, deterministic=False):
        history = optimise(
            losses, model.parameters(), len(x), loop, device=device, generators=(draw,), on_epoch=on_epoch
        )
    return TrainedVAE(model.eval(), history)


def resident(images: Images, device: torch.device) -> Tensor:
    """All images on the device, uint8 (N, C, H, W)."""
    check_images(images)
    if not isinstance(images, Tensor):
        images = images.read(torch.arange(len(images)))
    require(images.ndim == 4, f"images must be (N, C, H, W), got {tuple(images.shape)}")
    require(len(images) > 0, "there is no image to train on; give at least one")
    if images.dtype != torch.uint8:
        require(bool(torch.isfinite(images).all()), "images have NaN or infinite pixels; repair or remove them")
        low, high = float(images.min()), float(images.max())
        require(low >= 0 and high <= 1, f"images have values from {low:g} to {high:g}; scale them to [0, 1]")
        images = images.mul(255).round().to(torch.uint8)
    return images.to(device)
