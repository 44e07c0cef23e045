"""Knowing what was never seen: scores (pure), detectors, thresholds, label-free models."""

from holdfast.detect.describe import Description, describe_images, probe
from holdfast.detect.detectors import (
    DETECTORS,
    KL,
    KNN,
    MSP,
    Detector,
    Elbo,
    Energy,
    LikelihoodRegret,
    LocalReconstruction,
    Mahalanobis,
    MaxLogit,
    Reconstruction,
    RelativeMahalanobis,
    Rotation,
    ViM,
    make_detector,
)
from holdfast.detect.evaluation import Evaluation, auroc, evaluate
from holdfast.detect.features import ClassifierSight, JointSight, RotationSight, Seen, Sight, VAESight, look_at
from holdfast.detect.fitting import fit_monitor
from holdfast.detect.fused import Fused
from holdfast.detect.monitor import Monitor
from holdfast.detect.threshold import Threshold
from holdfast.train.rotation import train_rotation
from holdfast.train.unlabelled import MinimiseSettings, TrainedVAE, train_vae

__all__ = [
    "DETECTORS",
    "KL",
    "KNN",
    "MSP",
    "ClassifierSight",
    "Description",
    "Detector",
    "Elbo",
    "Energy",
    "Evaluation",
    "Fused",
    "JointSight",
    "LikelihoodRegret",
    "LocalReconstruction",
    "Mahalanobis",
    "MaxLogit",
    "MinimiseSettings",
    "Monitor",
    "Reconstruction",
    "RelativeMahalanobis",
    "Rotation",
    "RotationSight",
    "Seen",
    "Sight",
    "Threshold",
    "TrainedVAE",
    "VAESight",
    "ViM",
    "auroc",
    "describe_images",
    "evaluate",
    "fit_monitor",
    "look_at",
    "make_detector",
    "probe",
    "train_rotation",
    "train_vae",
]
