"""Out-of-distribution and anomaly detection: ``fit`` a detector on normal images, ``score`` others, ``evaluate`` it.

Everything is loaded when first used, so that the declarations of the detectors can be read without torch.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from holdfast.parts import DETECTORS as DETECTORS

if TYPE_CHECKING:  # for checkers; at run time _HOMES says where a name is
    from holdfast.detect.description import *  # noqa: F403
    from holdfast.detect.detectors import *  # noqa: F403
    from holdfast.detect.detectors.feature_distances import *  # noqa: F403
    from holdfast.detect.detectors.unfitted import *  # noqa: F403
    from holdfast.detect.evaluation import *  # noqa: F403
    from holdfast.detect.features import *  # noqa: F403
    from holdfast.detect.fitted_detector import *  # noqa: F403
    from holdfast.detect.fitting import *  # noqa: F403
    from holdfast.detect.predicting import *  # noqa: F403
    from holdfast.detect.scoring import *  # noqa: F403
    from holdfast.train.rotation import *  # noqa: F403
    from holdfast.train.unlabelled import *  # noqa: F403

_HOMES = {
    "detect.description": "Description describe describe_images probe",
    "detect.detectors": "Detector make_detector",
    "detect.detectors.feature_distances": "KNN LocalReconstruction Mahalanobis RelativeMahalanobis ViM",
    "detect.detectors.unfitted": "KL MSP Elbo Energy LikelihoodRegret MaxLogit Reconstruction Rotation",
    "detect.evaluation": "Evaluation Threshold auroc evaluate_scores",
    "detect.features": "ClassifierExtractor FeatureExtractor Features JointExtractor LogitExtractor "
    "RotationExtractor VAEExtractor extract",
    "detect.fitted_detector": "FittedDetector Fused ScoreReport",
    "detect.fitting": "fit",
    "detect.predicting": "Predictions predict",
    "detect.scoring": "evaluate score",
    "train.rotation": "train_rotation",
    "train.unlabelled": "MinimiseSettings TrainedVAE train_vae",
}
_NAMES = {name: f"holdfast.{home}" for home, names in _HOMES.items() for name in names.split()}

if not TYPE_CHECKING:  # a checker that sees these takes every name for granted
    __all__ = ["DETECTORS", *_NAMES]

    def __getattr__(name: str) -> Any:
        if name in _NAMES:
            return getattr(import_module(_NAMES[name]), name)
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return ["DETECTORS", *sorted(_NAMES)]
