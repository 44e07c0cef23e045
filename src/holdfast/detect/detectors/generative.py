"""Detectors that ask a network trained without labels."""

from __future__ import annotations

from torch import Tensor

from holdfast.detect.detectors.base import Detector, there
from holdfast.detect.features import Seen


class Elbo(Detector):
    """−ELBO at z = μ: reconstruction plus KL."""

    name = "elbo"
    needs = ("reconstruction", "kl")
    learns = False

    def _score(self, seen: Seen) -> Tensor:
        return there(seen.reconstruction) + there(seen.kl)


class Reconstruction(Detector):
    """−log p(x|z) at z = μ."""

    name = "reconstruction"
    needs = ("reconstruction",)
    learns = False

    def _score(self, seen: Seen) -> Tensor:
        return there(seen.reconstruction)


class KL(Detector):
    """KL(q(z|x) ‖ p(z))."""

    name = "kl"
    needs = ("kl",)
    learns = False

    def _score(self, seen: Seen) -> Tensor:
        return there(seen.kl)


class LikelihoodRegret(Detector):
    """How much the bound gains when q(z|x) is fitted to the image alone."""

    name = "likelihood-regret"
    needs = ("regret",)
    learns = False

    def _score(self, seen: Seen) -> Tensor:
        return there(seen.regret)


class Rotation(Detector):
    """How badly a rotation-predicting encoder recognises the turns of the image (Hendrycks et al., 2019)."""

    name = "rotation"
    needs = ("rotation",)
    learns = False

    def _score(self, seen: Seen) -> Tensor:
        return there(seen.rotation)
