"""Neighbours of samples and labels, as pure functions of tensors."""

from holdfast.vicinity.attacks import apgd, fgsm, pgd, square, unbounded
from holdfast.vicinity.biased import bias_adversarial
from holdfast.vicinity.labels import adversarial_labels, smooth_labels
from holdfast.vicinity.mixing import beta_of, cut, draw_beta, mix

__all__ = [
    "adversarial_labels",
    "apgd",
    "beta_of",
    "bias_adversarial",
    "cut",
    "draw_beta",
    "fgsm",
    "mix",
    "pgd",
    "smooth_labels",
    "square",
    "unbounded",
]
