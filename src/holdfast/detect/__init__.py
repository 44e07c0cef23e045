"""Out-of-distribution and anomaly detection: ``fit`` a detector on normal images, ``score`` others, ``evaluate`` it.

Everything is loaded when first used, so that the declarations of the detectors can be read without torch.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from holdfast.parts import DETECTORS

if TYPE_CHECKING:
    from holdfast.detect.description import Description, describe, describe_images, probe
    from holdfast.detect.detectors import detectors_reading, make_detector
    from holdfast.detect.detectors.detector import Detector
    from holdfast.detect.detectors.feature_distances import (
        KNN,
        LocalReconstruction,
        Mahalanobis,
        RelativeMahalanobis,
        ViM,
    )
    from holdfast.detect.detectors.label_free import KL, Elbo, LikelihoodRegret, Reconstruction, Rotation
    from holdfast.detect.detectors.logit_scores import MSP, Energy, MaxLogit
    from holdfast.detect.evaluation import Evaluation, auroc, evaluate_scores
    from holdfast.detect.features import (
        ClassifierExtractor,
        FeatureExtractor,
        Features,
        JointExtractor,
        LogitExtractor,
        RotationExtractor,
        VAEExtractor,
        extract,
    )
    from holdfast.detect.fitted_detector import FittedDetector, ScoreReport
    from holdfast.detect.fitting import fit, fit_detector
    from holdfast.detect.fused import Fused
    from holdfast.detect.scoring import Predictions, evaluate, predict, score
    from holdfast.detect.threshold import Threshold
    from holdfast.train.rotation import train_rotation
    from holdfast.train.unlabelled import MinimiseSettings, TrainedVAE, train_vae

_HOMES = {
    "detect.description": "Description describe describe_images probe",
    "detect.detectors": "detectors_reading make_detector",
    "detect.detectors.detector": "Detector",
    "detect.detectors.feature_distances": "KNN LocalReconstruction Mahalanobis RelativeMahalanobis ViM",
    "detect.detectors.label_free": "KL Elbo LikelihoodRegret Reconstruction Rotation",
    "detect.detectors.logit_scores": "MSP Energy MaxLogit",
    "detect.evaluation": "Evaluation auroc evaluate_scores",
    "detect.features": "ClassifierExtractor FeatureExtractor Features JointExtractor LogitExtractor "
    "RotationExtractor VAEExtractor extract",
    "detect.fitted_detector": "FittedDetector ScoreReport",
    "detect.fitting": "fit fit_detector",
    "detect.fused": "Fused",
    "detect.scoring": "Predictions evaluate predict score",
    "detect.threshold": "Threshold",
    "train.rotation": "train_rotation",
    "train.unlabelled": "MinimiseSettings TrainedVAE train_vae",
}
_NAMES = {name: f"holdfast.{home}" for home, names in _HOMES.items() for name in names.split()}

__all__ = [
    "DETECTORS",
    "KL",
    "KNN",
    "MSP",
    "ClassifierExtractor",
    "Description",
    "Detector",
    "Elbo",
    "Energy",
    "Evaluation",
    "FeatureExtractor",
    "Features",
    "FittedDetector",
    "Fused",
    "JointExtractor",
    "LikelihoodRegret",
    "LocalReconstruction",
    "LogitExtractor",
    "Mahalanobis",
    "MaxLogit",
    "MinimiseSettings",
    "Predictions",
    "Reconstruction",
    "RelativeMahalanobis",
    "Rotation",
    "RotationExtractor",
    "ScoreReport",
    "Threshold",
    "TrainedVAE",
    "VAEExtractor",
    "ViM",
    "auroc",
    "describe",
    "describe_images",
    "detectors_reading",
    "evaluate",
    "evaluate_scores",
    "extract",
    "fit",
    "fit_detector",
    "make_detector",
    "predict",
    "probe",
    "score",
    "train_rotation",
    "train_vae",
]  # fmt: skip

if not TYPE_CHECKING:  # a checker that sees it takes every name for granted

    def __getattr__(name: str) -> Any:
        if name in _NAMES:
            return getattr(import_module(_NAMES[name]), name)
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)
