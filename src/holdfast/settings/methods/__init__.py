"""What each method can be told. Subclassing registers: a method's name finds its settings here."""

from holdfast.settings.methods.base import Erm, MethodSettings
from holdfast.settings.methods.bias import (
    ErmBiasAdv,
    GroupDro,
    Jtt,
    JttBiasAdv,
    Lff,
    LffBiasAdv,
    Reweight,
)
from holdfast.settings.methods.unlabelled import FixMatch
from holdfast.settings.methods.vicinal import (
    Adversarial,
    Alps,
    CutMix,
    Dropout,
    Gaussian,
    LabelSmoothing,
    ManifoldMixup,
    Mixup,
    Vat,
)

__all__ = [
    "Adversarial",
    "Alps",
    "CutMix",
    "Dropout",
    "Erm",
    "ErmBiasAdv",
    "FixMatch",
    "Gaussian",
    "GroupDro",
    "Jtt",
    "JttBiasAdv",
    "LabelSmoothing",
    "Lff",
    "LffBiasAdv",
    "ManifoldMixup",
    "MethodSettings",
    "Mixup",
    "Reweight",
    "Vat",
]
