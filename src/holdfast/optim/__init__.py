"""Descent and ascent in weight space, around any torch optimiser."""

from holdfast.optim.build import build_optimizer, set_lr, trained_parameters

__all__ = ["build_optimizer", "set_lr", "trained_parameters"]
