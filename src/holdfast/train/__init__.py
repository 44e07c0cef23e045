"""Train classifiers, and models without labels: one loop for all of them."""

from holdfast.errors import Interrupted
from holdfast.train.api import fit, train
from holdfast.train.rate_finder import find_lr
from holdfast.train.run_result import Run

__all__ = ["Interrupted", "Run", "find_lr", "fit", "train"]
