"""Detectors that read a network trained without labels, a VAE or a rotation encoder: nothing else is fitted."""

from __future__ import annotations

from typing import TYPE_CHECKING

from holdfast.detect.detectors.detector import Detector, there
from holdfast.parts import detector

if TYPE_CHECKING:
    from torch import Tensor

    from holdfast.detect.features import Features


@detector("elbo", about="−ELBO of a VAE at z = μ", reads=("reconstruction", "kl"), order=8)
class Elbo(Detector):
    """−ELBO at z = μ: reconstruction plus KL."""

    learns = False

    def compute(self, features: Features) -> Tensor:
        return there(features.reconstruction) + there(features.kl)


@detector("reconstruction", about="−log p(x|z) of a VAE at z = μ", reads=("reconstruction",), order=9)
class Reconstruction(Detector):
    """−log p(x|z) at z = μ."""

    learns = False

    def compute(self, features: Features) -> Tensor:
        return there(features.reconstruction)


@detector("kl", about="KL(q(z|x) ‖ p(z)) of a VAE", reads=("kl",), order=10)
class KL(Detector):
    """KL(q(z|x) ‖ p(z))."""

    learns = False

    def compute(self, features: Features) -> Tensor:
        return there(features.kl)


@detector(
    "likelihood-regret", about="what a VAE's bound gains when μ is fitted to the image", reads=("regret",), order=11
)
class LikelihoodRegret(Detector):
    """How much the bound gains when q(z|x) is fitted to the image alone (Xiao et al., 2020)."""

    learns = False

    def compute(self, features: Features) -> Tensor:
        return there(features.regret)


@detector("rotation", about="how badly an encoder recognises the turns of the image", reads=("rotation",), order=12)
class Rotation(Detector):
    """How badly a rotation-predicting encoder recognises the turns of the image (Hendrycks et al., 2019)."""

    learns = False

    def compute(self, features: Features) -> Tensor:
        return there(features.rotation)
