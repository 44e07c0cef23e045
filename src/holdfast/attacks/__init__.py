"""Attacks: the image near x that a classifier gets most wrong. Pure functions of any callable from images to logits.

``fgsm``, ``pgd``, ``apgd`` climb gradients; ``square`` asks for scores only; ``transfer`` climbs another model. A
``CapturedAttack`` runs one of them as a CUDA graph; ``QueuedPgd`` runs PGD over a whole set with early stop. All of
them leave the model as they found it.
"""

from holdfast.attacks.apgd import apgd
from holdfast.attacks.biasadv import bias_adversarial
from holdfast.attacks.captured import CapturedAttack
from holdfast.attacks.pgd import PRESETS, Preset, fgsm, noise, pgd, transfer, unbounded
from holdfast.attacks.queued import QueuedPgd
from holdfast.attacks.square import square

__all__ = [
    "PRESETS",
    "CapturedAttack",
    "Preset",
    "QueuedPgd",
    "apgd",
    "bias_adversarial",
    "fgsm",
    "noise",
    "pgd",
    "square",
    "transfer",
    "unbounded",
]
