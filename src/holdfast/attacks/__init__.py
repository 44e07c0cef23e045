"""Adversarial attacks: adversarial examples within a radius, for any callable from images to logits.

``fgsm``, ``pgd`` and ``apgd`` follow gradients; ``square`` needs scores only; ``transfer`` attacks a surrogate.
``CapturedAttack`` runs one of them as a CUDA graph; ``QueuedPgd`` runs PGD over a whole data set with early stop. The
model's modes, statistics and gradients are left unchanged.
"""

from holdfast.attacks.apgd import apgd
from holdfast.attacks.bias_attack import bias_adversarial
from holdfast.attacks.captured import CapturedAttack, QueuedPgd
from holdfast.attacks.pgd import PRESETS, Preset, fgsm, noise, pgd, transfer, unbounded
from holdfast.attacks.square import square

__all__ = [
    "PRESETS", "CapturedAttack", "Preset", "QueuedPgd", "apgd", "bias_adversarial", "fgsm", "noise", "pgd",
    "square", "transfer", "unbounded",
]  # fmt: skip
