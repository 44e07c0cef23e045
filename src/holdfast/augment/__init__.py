"""Neighbours of samples and labels: mixed images, smoothed and adversarial labels, crops, flips and strong changes."""

from holdfast.augment.labels import adversarial_labels, smooth_labels
from holdfast.augment.mixing import beta_of, cut, draw_beta, mix

__all__ = ["adversarial_labels", "beta_of", "cut", "draw_beta", "mix", "smooth_labels"]
