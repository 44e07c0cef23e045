"""What metrics refuse: numbers that would give a result, and a wrong one. Open it to change what they take."""

from __future__ import annotations

import torch
from torch import Tensor

from holdfast.errors import HoldfastError, require

ROUNDING = 1e-6
"""By so much a probability in float32 may exceed 1."""


def check_logits(logits: Tensor, labels: Tensor) -> None:
    """(N, K) logits and (N,) labels: classes from 0 to K - 1, and no NaN."""
    fits = logits.ndim == 2 and labels.shape == logits.shape[:1]
    require(fits, f"logits (N, K) and labels (N,) are needed, got {tuple(logits.shape)} and {tuple(labels.shape)}")
    classes = logits.shape[1]
    refuse(labels, (labels < 0) | (labels >= classes) | (labels % 1 != 0), f"labels must be in 0..{classes - 1}")
    refuse(logits, logits.isnan(), "logits must be numbers")


def check_confidence(confidence: Tensor, correct: Tensor) -> None:
    """(N,) confidences in [0, 1] and (N,) flags, N > 0."""
    fits = confidence.ndim == 1 and confidence.shape == correct.shape
    shapes = f"{tuple(confidence.shape)} and {tuple(correct.shape)}"
    require(fits, f"confidence and correct must both have shape (N,), got {shapes}")
    inside = (confidence >= 0) & (confidence <= 1 + ROUNDING)  # not of NaN
    refuse(confidence, ~inside, "confidence must be in [0, 1]; take the softmax of logits")
    check_flags(correct)


def check_flags(correct: Tensor) -> None:
    """(N,) flags: bool, or numbers that are 0 or 1; N > 0."""
    require(correct.numel() > 0, "there are no samples; a share of none has no value")
    if correct.dtype != torch.bool:
        refuse(correct, (correct != 0) & (correct != 1), "flags must be 0 or 1")


def check_numbers(values: Tensor, what: str) -> None:
    """Values without NaN, at least one."""
    require(values.numel() > 0, f"there are no {what}; give at least one")
    refuse(values, values.isnan(), f"{what} must be numbers")


def refuse(values: Tensor, bad: Tensor, rule: str) -> None:
    """Raise for the first value that breaks the rule, saying where it is."""
    if bool(bad.any()):
        at = bad.nonzero()[0].tolist()
        place = at[0] if len(at) == 1 else tuple(at)
        raise HoldfastError(f"{rule}; got {values[tuple(at)].item():g} at position {place}")
