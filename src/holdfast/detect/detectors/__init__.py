"""Detectors: fit on normal data, then score. Higher is more anomalous, for every one of them."""

from __future__ import annotations

from typing import Any

from holdfast.detect.detectors.base import Detector
from holdfast.detect.detectors.features import KNN, LocalReconstruction, Mahalanobis, RelativeMahalanobis, ViM
from holdfast.detect.detectors.generative import KL, Elbo, LikelihoodRegret, Reconstruction, Rotation
from holdfast.detect.detectors.logits import MSP, Energy, MaxLogit
from holdfast.detect.features import Sight
from holdfast.errors import unknown

DETECTORS: dict[str, type[Detector]] = {
    kind.name: kind
    for kind in (
        MSP, MaxLogit, Energy, KNN, Mahalanobis, RelativeMahalanobis, ViM,
        Elbo, Reconstruction, KL, LikelihoodRegret, Rotation, LocalReconstruction,
    )
}  # fmt: skip
"""Every single score by name; ``fused`` joins several of them."""


def make_detector(name: str, sight: Sight | None = None, **settings: Any) -> Detector:
    """A detector by name."""
    if name not in DETECTORS:
        raise unknown("detector", name, DETECTORS)
    return DETECTORS[name](sight, **settings)


__all__ = [
    "DETECTORS",
    "KL",
    "KNN",
    "MSP",
    "Detector",
    "Elbo",
    "Energy",
    "LikelihoodRegret",
    "LocalReconstruction",
    "Mahalanobis",
    "MaxLogit",
    "Reconstruction",
    "RelativeMahalanobis",
    "Rotation",
    "ViM",
    "make_detector",
]
