"""The networks that are holdfast's own, by name."""

from __future__ import annotations

from collections.abc import Callable

from torch import nn

from holdfast.errors import HoldfastError
from holdfast.models import cifar, preact
from holdfast.models.architecture import Raw, Size
from holdfast.models.convnet import ConvNet
from holdfast.models.latent import latent_classifier

NETS: dict[str, Callable[[int, int], nn.Module]] = {
    "convnet": ConvNet,
    "cifar-resnet18": cifar.resnet18,
    "cifar-preactresnet18": preact.preactresnet18,
    "cifar-vgg16": cifar.vgg16,
    "cifar-vgg16-bn": cifar.vgg16_bn,
    "cifar-wrn-28-10": preact.wrn_28_10,
}
"""Each takes (num_classes, in_channels) and pictures of any size."""
ENCODERS = {"vae-head": True, "vae-classifier": False}
"""Classifiers on a VAE's encoder, each for one size of pictures, and whether the encoder is held still."""


def names() -> list[str]:
    return [*NETS, *ENCODERS]


def make(name: str, *, num_classes: int, channels: int, size: Size | None, pretrained: bool) -> Raw:
    if pretrained:
        raise HoldfastError(f"{name} has no published weights; drop --pretrained, or give --weights FILE")
    if name in ENCODERS:  # a VAE takes pictures as they are: any other normalisation would be undone by its decoder
        net = latent_classifier(num_classes, channels, size, frozen=ENCODERS[name])
        return Raw(net, channels, (0.0,) * channels, (1.0,) * channels)
    return Raw(NETS[name](num_classes, channels), channels)
