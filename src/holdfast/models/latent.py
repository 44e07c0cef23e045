"""A classifier on the encoder of a VAE: the report's two-layer head on the mean of q(z|x)."""

from __future__ import annotations

from typing import Final

from torch import Tensor, nn

from holdfast.errors import require
from holdfast.models.architecture import Size, both_sides
from holdfast.models.vae import VAE, VAESettings

LATENT: Final = 16


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


def latent_classifier(num_classes: int, channels: int, size: Size | None, *, frozen: bool) -> LatentClassifier:
    require(size is not None, "a classifier on a VAE must know the size of its images; give image_size")
    assert size is not None
    return LatentClassifier(VAESettings((channels, *both_sides(size)), latent=LATENT), num_classes, frozen=frozen)
