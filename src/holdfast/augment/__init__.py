"""Neighbours of samples and labels: mixed images, smoothed and adversarial labels, crops, flips and strong changes."""

from holdfast.augment.mixing import adversarial_labels, beta_of, cut, draw_beta, mix, smooth_labels

__all__ = ["adversarial_labels", "beta_of", "cut", "draw_beta", "mix", "smooth_labels"]
