"""Attacks: the image near x that a classifier gets most wrong. Pure functions of any callable from images to logits.

``fgsm``, ``pgd``, ``apgd`` climb gradients; ``square`` asks for scores only; ``transfer`` climbs another model. A
``CapturedAttack`` runs one of them as a CUDA graph; ``QueuedPgd`` runs PGD over a whole set with early stop. All of
them leave the model as they found it.
"""

from holdfast.vicinity.attacks.apgd import apgd
from holdfast.vicinity.attacks.captured import CapturedAttack
from holdfast.vicinity.attacks.fgsm import fgsm
from holdfast.vicinity.attacks.noise import noise
from holdfast.vicinity.attacks.pgd import pgd, unbounded
from holdfast.vicinity.attacks.presets import PRESETS, Preset
from holdfast.vicinity.attacks.queued import QueuedPgd
from holdfast.vicinity.attacks.square import square
from holdfast.vicinity.attacks.transfer import transfer

__all__ = [
    "PRESETS",
    "CapturedAttack",
    "Preset",
    "QueuedPgd",
    "apgd",
    "fgsm",
    "noise",
    "pgd",
    "square",
    "transfer",
    "unbounded",
]
