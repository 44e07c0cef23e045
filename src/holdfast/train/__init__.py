"""Train classifiers, and models without labels: one loop for all of them."""

from holdfast.errors import Interrupted
from holdfast.train.api import FitResult, fit, train

__all__ = ["FitResult", "Interrupted", "fit", "train"]
