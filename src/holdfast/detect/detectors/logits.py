"""Detectors that look at logits alone."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from holdfast.detect import scores
from holdfast.detect.detectors.base import Detector, there
from holdfast.detect.features import Seen, Sight
from holdfast.errors import require


class MSP(Detector):
    """1 − the classifier's confidence."""

    name = "msp"
    needs = ("logits",)
    learns = False

    def _score(self, seen: Seen) -> Tensor:
        return scores.msp(there(seen.logits))


class MaxLogit(Detector):
    """−the largest logit."""

    name = "max-logit"
    needs = ("logits",)
    learns = False

    def _score(self, seen: Seen) -> Tensor:
        return scores.max_logit(there(seen.logits))


class Energy(Detector):
    """−log Σ exp of the logits."""

    name = "energy"
    needs = ("logits",)
    learns = False

    def __init__(self, sight: Sight | None = None, *, temperature: float = 1.0) -> None:
        super().__init__(sight)
        require(temperature > 0, f"temperature must be > 0, got {temperature}")
        self.temperature = temperature

    @property
    def settings(self) -> dict[str, Any]:
        return {"temperature": self.temperature}

    def _score(self, seen: Seen) -> Tensor:
        return scores.energy(there(seen.logits), temperature=self.temperature)
