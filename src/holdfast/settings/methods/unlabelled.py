"""Settings of the methods that also learn from images without labels."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from holdfast.errors import require
from holdfast.settings.methods.base import MethodSettings


@dataclass(frozen=True)
class FixMatch(MethodSettings):
    """FixMatch: sure guesses on images without labels must hold for strongly changed copies of them."""

    name: ClassVar[str] = "fixmatch"
    implementation: ClassVar[str] = "holdfast.methods.fixmatch:FixMatchMethod"
    learns_unlabeled: ClassVar[bool] = True
    ratio: int = 7
    """Images without labels (--labels, --unlabeled) for each labelled one; without any, the batch itself serves."""
    confidence: float = 0.95
    """How sure a guess must be."""
    weight: float = 1.0
    """Weight of the guesses."""
    flip: bool = False
    """Whether mirroring an image leaves its class as it is."""

    def __post_init__(self) -> None:
        require(self.ratio >= 1, f"ratio must be >= 1, got {self.ratio}")
        require(0 < self.confidence <= 1, f"confidence must be in (0, 1], got {self.confidence}")
        require(self.weight >= 0, f"weight must be >= 0, got {self.weight}")
