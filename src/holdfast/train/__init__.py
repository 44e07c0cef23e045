"""Train classifiers, and models without labels: one loop for all of them."""

from holdfast.errors import Interrupted
from holdfast.train.api import fit, train
from holdfast.train.run_result import Run

__all__ = ["Interrupted", "Run", "fit", "train"]
