"""Detectors that read a classifier's logits alone: nothing is fitted."""

from __future__ import annotations

from typing import TYPE_CHECKING

from holdfast.detect.detectors.detector import Detector, there
from holdfast.errors import require
from holdfast.parts import detector

if TYPE_CHECKING:
    from torch import Tensor

    from holdfast.detect.features import FeatureExtractor, Features


@detector("msp", about="1 − the classifier's confidence", reads=("logits",), order=1)
class MSP(Detector):
    """1 − the largest probability (Hendrycks & Gimpel, 2017)."""

    learns = False

    def compute(self, features: Features) -> Tensor:
        from holdfast.detect.scores import msp

        return msp(there(features.logits))


@detector("max-logit", about="−the largest logit", reads=("logits",), order=2)
class MaxLogit(Detector):
    """−the largest logit (Hendrycks et al., 2022)."""

    learns = False

    def compute(self, features: Features) -> Tensor:
        from holdfast.detect.scores import max_logit

        return max_logit(there(features.logits))


@detector("energy", about="−log Σ exp of the logits", reads=("logits",), order=3)
class Energy(Detector):
    """−T log Σ exp(logit / T) (Liu et al., 2020)."""

    learns = False

    def __init__(self, extractor: FeatureExtractor | None = None, *, temperature: float = 1.0) -> None:
        super().__init__(extractor)
        require(temperature > 0, f"temperature must be > 0, got {temperature}")
        self.temperature = temperature

    def compute(self, features: Features) -> Tensor:
        from holdfast.detect.scores import energy

        return energy(there(features.logits), temperature=self.temperature)
