"""Train classifiers, and models without labels: one loop for all of them."""

from holdfast.errors import Interrupted
from holdfast.train.api import FitResult, fit, train
from holdfast.train.rate_finder import find_lr

__all__ = ["FitResult", "Interrupted", "find_lr", "fit", "train"]
