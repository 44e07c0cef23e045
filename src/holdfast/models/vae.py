"""Variational autoencoders of images, the report's network to the letter and a strided one as our default, and
classifiers on their encoder."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from typing import Annotated, Any, Final

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from holdfast import losses
from holdfast.errors import HoldfastError, require, require_known
from holdfast.settings import Bounded, Within
from holdfast.settings.detect_settings import MOST_LATENT

WIDTHS: Final = (32, 64, 128)
NETWORKS: Final = ("strided", "report")
LATENT: Final = 16
"""Latent dimensions of the classifiers on a VAE."""
LOWEST_LOG_SIGMA: Final = -6.0
"""A learned σ stops here: on constant images it would otherwise run to zero and the bound to infinity."""


@dataclass(frozen=True)
class VAESettings(Bounded):
    """What a VAE is.

    network: ``strided`` (ours) or ``report`` (three 3×3 convolutions without stride or padding). shape: (C, H, W)
    of the images. latent: dimensions of z. sigma: the decoder's standard deviation; None learns it. beta: weight of
    the KL term in training.
    """

    shape: tuple[int, int, int]
    network: str = "strided"
    latent: Annotated[int, Within(1, MOST_LATENT, "..")] = 16
    sigma: float | None = None
    beta: Annotated[float, Within(0, ends="[)")] = 1.0

    def __post_init__(self) -> None:
        super().__post_init__()
        require_known("VAE network", self.network, NETWORKS)
        require(len(self.shape) == 3 and min(self.shape) >= 1, f"shape must be (C, H, W), got {self.shape}")
        above = self.sigma is None or 0 < self.sigma < math.inf
        require(above, f"sigma must be > 0, or None to learn it, got {self.sigma}")
        least = 2 * len(WIDTHS) + 1 if self.network == "report" else 2
        need = f"the {self.network} VAE needs images of at least {least}x{least} pixels"
        require(min(self.shape[1:]) >= least, f"{need}, got {self.shape[1]}x{self.shape[2]}")

    def to_json(self) -> dict[str, Any]:
        return {**asdict(self), "shape": list(self.shape)}

    @classmethod
    def from_json(cls, values: dict[str, Any]) -> VAESettings:
        return cls(**{**values, "shape": tuple(values["shape"])})


def report_settings(shape: tuple[int, int, int] = (1, 32, 32), *, latent: int = 16) -> VAESettings:
    """The report's model: its network and its fixed σ² = 1/2."""
    return VAESettings(shape, network="report", latent=latent, sigma=losses.REPORT_SIGMA)


@dataclass(frozen=True, eq=False)
class ElboTerms:
    """What the bound of each image is made of.

    reconstruction: (B,) −log p(x|z), constant included. kl: (B,) KL(q ‖ p), analytic. mean, log_var: (B, K) of q(z|x).
    decoded: (B, C, H, W) mean of p(x|z).
    """

    reconstruction: Tensor
    kl: Tensor
    mean: Tensor
    log_var: Tensor
    decoded: Tensor

    @property
    def elbo(self) -> Tensor:
        return -(self.reconstruction + self.kl)


class VAE(nn.Module):
    """Encoder to q(z|x), decoder to p(x|z), and σ, fixed or learned."""

    log_sigma: Tensor

    def __init__(self, settings: VAESettings) -> None:
        super().__init__()
        self.settings = settings
        self.encoder, self.decoder, self.inner = _layers(settings.shape, strided=settings.network == "strided")
        size = math.prod(self.inner)
        self.to_mean = nn.Linear(size, settings.latent)
        self.to_log_var = nn.Linear(size, settings.latent)
        self.from_latent = nn.Linear(settings.latent, size)
        start = torch.tensor(math.log(settings.sigma if settings.sigma is not None else 0.2))
        if settings.sigma is None:
            self.log_sigma = nn.Parameter(start)
        else:
            self.register_buffer("log_sigma", start)

    def encode(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """(mean, log variance) of q(z|x), each (B, K), for images in [0, 1]."""
        self._check(x)
        hidden = self.encoder(x).flatten(1).to(self.to_mean.weight.dtype)
        # Out of any autocast: three digits of log σ² are too few for the KL term.
        with torch.autocast(x.device.type, enabled=False):
            return self.to_mean(hidden), self.to_log_var(hidden)

    def decode(self, z: Tensor) -> Tensor:
        """(B, C, H, W) mean of p(x|z) for z (B, K)."""
        images: Tensor = self.decoder(F.relu(self.from_latent(z)).view(-1, *self.inner))
        return images

    def forward(self, x: Tensor) -> Tensor:
        """q's mean (B, K): a description of each image, never a random draw of one."""
        return self.encode(x)[0]

    def terms(self, x: Tensor, noise: Tensor | None = None) -> ElboTerms:
        """The bound's terms with z = mean + σ·noise (B, K); without noise z is the mean, and nothing is random."""
        mean, log_var = self.encode(x)
        z = mean if noise is None else losses.reparameterise(mean, log_var, noise)
        decoded = self.decode(z).float()
        nll = losses.gaussian_nll(x.float(), decoded, self.bounded_log_sigma)
        return ElboTerms(nll, losses.kl_to_standard_normal(mean, log_var), mean, log_var, decoded)

    def importance_weighted(self, x: Tensor, noise: Tensor) -> Tensor:
        """(B,) the importance-weighted bound on log p(x) with noise (S, B, K): S draws."""
        mean, log_var = self.encode(x)
        weights = []
        for own in noise:
            z = losses.reparameterise(mean, log_var, own)
            nll = losses.gaussian_nll(x.float(), self.decode(z).float(), self.bounded_log_sigma)
            weights.append(losses.log_normal(z) - nll - losses.log_normal(z, mean, log_var))
        return losses.importance_weighted_bound(torch.stack(weights))

    @property
    def bounded_log_sigma(self) -> Tensor:
        return self.log_sigma.clamp(min=LOWEST_LOG_SIGMA)

    @property
    def sigma(self) -> float:
        return float(self.bounded_log_sigma.detach().exp())

    def _check(self, x: Tensor) -> None:
        if x.ndim != 4 or tuple(x.shape[1:]) != self.settings.shape:
            shapes = f"of shape (C, H, W) {self.settings.shape}, got {tuple(x.shape[1:])}"
            raise HoldfastError(f"this VAE takes images {shapes}; bring them to that size and number of channels")
        if not x.is_floating_point():
            raise HoldfastError(f"images must be float in [0, 1], got {x.dtype}; divide bytes by 255")


def _layers(shape: tuple[int, int, int], *, strided: bool) -> tuple[nn.Module, nn.Module, tuple[int, int, int]]:
    """An encoder of 3×3 convolutions, its mirror, and the shape (C, H, W) between them.

    strided: each convolution halves the side (rounding up); its mirror restores exactly the side it had, in [0, 1].
    Otherwise, as in the report, neither stride nor padding: 32×32 images become 26×26 maps. The decoder then ends
    without a sigmoid: the report names none, and at the learning rate it found best, 1e-3, the first ten steps would
    drive one to 0 on every pixel, where no gradient brings it back.
    """
    channels, height, width = shape
    down: list[nn.Module] = []
    up: list[nn.Module] = []
    options: dict[str, Any] = {"stride": 2, "padding": 1} if strided else {}
    for before, after in zip((channels, *WIDTHS), WIDTHS, strict=False):
        extra = (1 - height % 2, 1 - width % 2) if strided else 0
        down += [nn.Conv2d(before, after, 3, **options), nn.ReLU()]
        up = [nn.ConvTranspose2d(after, before, 3, **options, output_padding=extra), nn.ReLU(), *up]
        height, width = ((height + 1) // 2, (width + 1) // 2) if strided else (height - 2, width - 2)
    up[-1:] = [nn.Sigmoid()] if strided else []  # nothing follows the report's last layer
    return nn.Sequential(*down), nn.Sequential(*up), (WIDTHS[-1], height, width)


def latent_head(latent: int, num_classes: int) -> nn.Sequential:
    """The report's head: latent → 256 → 512 → logits."""
    return nn.Sequential(nn.Linear(latent, 256), nn.ReLU(), nn.Linear(256, 512), nn.ReLU(), nn.Linear(512, num_classes))


class LatentClassifier(nn.Module):
    """Logits from what our VAE's encoder says of an image. frozen: the encoder keeps its weights, whoever trains it."""

    def __init__(self, settings: VAESettings, num_classes: int, *, frozen: bool) -> None:
        super().__init__()
        vae = VAE(settings)
        self.settings, self.frozen = settings, frozen
        self.encoder, self.to_mean = vae.encoder, vae.to_mean
        self.head = latent_head(settings.latent, num_classes)
        if frozen:
            for parameter in (*self.encoder.parameters(), *self.to_mean.parameters()):
                parameter.requires_grad_(False)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.head(self.to_mean(self.encoder(x).flatten(1)))
        return out

    def start_from(self, vae: VAE) -> None:
        """Take over the encoder of a trained VAE of the same settings."""
        require(vae.settings == self.settings, f"the classifier is for {self.settings}, the VAE is {vae.settings}")
        self.encoder.load_state_dict(vae.encoder.state_dict())
        self.to_mean.load_state_dict(vae.to_mean.state_dict())
