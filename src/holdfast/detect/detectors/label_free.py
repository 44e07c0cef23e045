"""Detectors that read a network trained without labels, a VAE or a rotation encoder: nothing else is fitted."""

from __future__ import annotations

from typing import TYPE_CHECKING

from holdfast.detect.detectors.detector import Detector, there
from holdfast.parts import detector

if TYPE_CHECKING:
    from torch import Tensor

    from holdfast.detect.features import Features


class _Read(Detector):
    """What the network says is the score: the sum of what the detector reads."""

    learns = False

    def compute(self, features: Features) -> Tensor:
        first, *rest = (there(getattr(features, name)) for name in self.reads)
        return sum(rest, first)


@detector("elbo", about="−ELBO of a VAE at z = μ", reads=("reconstruction", "kl"), order=8)
class Elbo(_Read):
    """−ELBO at z = μ: reconstruction plus KL."""


@detector("reconstruction", about="−log p(x|z) of a VAE at z = μ", reads=("reconstruction",), order=9)
class Reconstruction(_Read):
    """−log p(x|z) at z = μ."""


@detector("kl", about="KL(q(z|x) ‖ p(z)) of a VAE", reads=("kl",), order=10)
class KL(_Read):
    """KL(q(z|x) ‖ p(z))."""


@detector("likelihood-regret", about="what the ELBO gains when μ is fitted to the image", reads=("regret",), order=11)
class LikelihoodRegret(_Read):
    """How much the bound gains when q(z|x) is fitted to the image alone (Xiao et al., 2020)."""


@detector("rotation", about="how badly an encoder recognises the turns of the image", reads=("rotation",), order=12)
class Rotation(_Read):
    """How badly a rotation-predicting encoder recognises the turns of the image (Hendrycks et al., 2019)."""
