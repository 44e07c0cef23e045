"""The SAM family (SAM, ASAM, Fisher SAM, Friendly SAM) around any torch optimiser."""

from holdfast.module_state import frozen_statistics
from holdfast.optim.descent import build_optimizer, set_option, trained_parameters
from holdfast.optim.family import ASAM, FisherSAM, FriendlySAM
from holdfast.optim.metrics import Adaptive, Euclidean, Fisher, Metric
from holdfast.optim.sam import SAM

__all__ = [
    "ASAM", "SAM", "Adaptive", "Euclidean", "Fisher", "FisherSAM", "FriendlySAM", "Metric", "build_optimizer",
    "frozen_statistics", "set_option", "trained_parameters",
]  # fmt: skip
