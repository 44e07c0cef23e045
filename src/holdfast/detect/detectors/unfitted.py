"""Detectors with nothing to fit: they read a classifier's logits, or a VAE or encoder trained without labels."""

from __future__ import annotations

from typing import TYPE_CHECKING

from holdfast.detect import scores
from holdfast.detect.detectors import Detector, there
from holdfast.errors import require
from holdfast.parts import detector

if TYPE_CHECKING:
    from torch import Tensor

    from holdfast.detect.features import FeatureExtractor, Features


class Unfitted(Detector):
    """What the network says is the score: the sum of what the detector reads, where it computes nothing else."""

    learns = False

    def compute(self, features: Features) -> Tensor:
        first, *rest = (there(getattr(features, name)) for name in self.reads)
        return sum(rest, first)


@detector(
    "msp",
    aliases=("max-softmax", "maximum-softmax-probability"),
    about="1 − the classifier's confidence",
    reads=("logits",),
    order=1,
)
class MSP(Unfitted):
    """1 − the largest probability (Hendrycks & Gimpel, 2017).

    >>> import torch
    >>> MSP().score_features(torch.zeros(1, 4))  # a quarter for each class
    tensor([0.7500])
    """

    def compute(self, features: Features) -> Tensor:
        return scores.msp(there(features.logits))


@detector("max-logit", aliases=("mls",), about="−the largest logit", reads=("logits",), order=2)
class MaxLogit(Unfitted):
    """−the largest logit (Hendrycks et al., 2022).

    >>> import torch
    >>> MaxLogit().score_features(torch.tensor([[1.0, 3.0]]))
    tensor([-3.])
    """

    def compute(self, features: Features) -> Tensor:
        return scores.max_logit(there(features.logits))


@detector("energy", about="−log Σ exp of the logits", reads=("logits",), order=3)
class Energy(Unfitted):
    """−T log Σ exp(logit / T) (Liu et al., 2020).

    >>> import torch
    >>> Energy().score_features(torch.zeros(1, 2))  # -log 2
    tensor([-0.6931])
    """

    def __init__(self, extractor: FeatureExtractor | None = None, *, temperature: float = 1.0) -> None:
        super().__init__(extractor)
        require(temperature > 0, f"temperature must be > 0, got {temperature}")
        self.temperature = temperature

    def compute(self, features: Features) -> Tensor:
        return scores.energy(there(features.logits), temperature=self.temperature)


@detector("elbo", about="−ELBO of a VAE at z = μ", reads=("reconstruction", "kl"), order=8)
class Elbo(Unfitted):
    """−ELBO at z = μ: reconstruction plus KL.

    >>> import torch
    >>> from holdfast.detect import Features
    >>> Elbo().score_features(Features(reconstruction=torch.tensor([2.0]), kl=torch.tensor([0.5])))
    tensor([2.5000])
    """


@detector("elbo-drawn", about="−ELBO of a VAE at a z drawn from q(z|x)", reads=("drawn", "kl"), order=8)
class ElboDrawn(Unfitted):
    """−ELBO at one z drawn from q(z|x), as the bound is defined and trained; noisier than at μ."""


@detector("reconstruction", about="−log p(x|z) of a VAE at z = μ", reads=("reconstruction",), order=9)
class Reconstruction(Unfitted):
    """−log p(x|z) at z = μ.

    >>> import torch
    >>> Reconstruction().score_features(torch.tensor([1.0, 8.0]))
    tensor([1., 8.])
    """


@detector("kl", about="KL(q(z|x) ‖ p(z)) of a VAE", reads=("kl",), order=10)
class KL(Unfitted):
    """KL(q(z|x) ‖ p(z)).

    >>> import torch
    >>> KL().score_features(torch.tensor([0.5, 3.0]))
    tensor([0.5000, 3.0000])
    """


@detector("likelihood-regret", about="what the ELBO gains when μ is fitted to the image", reads=("regret",), order=11)
class LikelihoodRegret(Unfitted):
    """How much the bound gains when q(z|x) is fitted to the image alone (Xiao et al., 2020).

    >>> import torch
    >>> LikelihoodRegret().score_features(torch.tensor([0.1, 2.0]))
    tensor([0.1000, 2.0000])
    """


@detector("rotation", about="how badly an encoder recognises the turns of the image", reads=("rotation",), order=12)
class Rotation(Unfitted):
    """How badly a rotation-predicting encoder recognises the turns of the image (Hendrycks et al., 2019).

    >>> import torch
    >>> Rotation().score_features(torch.tensor([0.2, 1.4]))
    tensor([0.2000, 1.4000])
    """
