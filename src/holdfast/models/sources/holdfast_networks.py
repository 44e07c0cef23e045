"""holdfast's own networks by name, such as ``convnet``. Open this file to name another one."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from holdfast.errors import HoldfastError, require
from holdfast.models.source_types import NONE, ModelSource, Sides, SourceModel
from holdfast.parts import source

if TYPE_CHECKING:
    from torch import nn

NETWORKS = {
    "convnet": "ConvNet",
    "cifar-resnet18": "resnet18",
    "cifar-preactresnet18": "preactresnet18",
    "cifar-vgg16": "vgg16",
    "cifar-vgg16-bn": "vgg16_bn",
    "cifar-wrn-28-10": "wrn_28_10",
}
"""What makes each in ``holdfast.models.networks`` from (num_classes, in_channels), for pictures of any size."""
ENCODERS = {"vae-head": True, "vae-classifier": False}
"""Classifiers on a VAE's encoder, each for one size of pictures, and whether the encoder is frozen."""


@source("holdfast", about="Networks that come with holdfast; without published weights.", order=10)
class HoldfastNetworks(ModelSource):
    def names(self) -> Sequence[str]:
        return [*NETWORKS, *ENCODERS]

    def build(
        self, name: str, *, num_classes: int, channels: int, image_size: Sides | None, pretrained: bool
    ) -> SourceModel:
        require(not pretrained, f"{name} has no published weights; drop --pretrained, or give --weights FILE")
        if name in ENCODERS:  # a VAE takes pixels: any other normalisation would be undone by its decoder
            from holdfast.models.vae import LATENT, LatentClassifier, VAESettings

            if image_size is None:
                raise HoldfastError("a classifier on a VAE must know the size of its images; give image_size")
            settings = VAESettings((channels, *image_size), latent=LATENT)
            return SourceModel(LatentClassifier(settings, num_classes, frozen=ENCODERS[name]), NONE)
        return SourceModel(network(name)(num_classes, channels))


def network(name: str) -> Callable[[int, int], nn.Module]:
    """What makes a network from (num_classes, in_channels)."""
    from holdfast.models import networks

    made: Callable[[int, int], nn.Module] = getattr(networks, NETWORKS[name])
    return made
