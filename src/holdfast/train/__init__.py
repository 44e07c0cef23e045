"""The engine: one loop for every method."""

from holdfast.train.api import FitResult, fit, train
from holdfast.train.signals import Interrupted

__all__ = ["FitResult", "Interrupted", "fit", "train"]
