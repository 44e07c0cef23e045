"""The engine: one loop for every method."""

from holdfast.errors import Interrupted
from holdfast.train.api import FitResult, fit, train

__all__ = ["FitResult", "Interrupted", "fit", "train"]
