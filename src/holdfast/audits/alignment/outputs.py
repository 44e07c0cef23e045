"""What kind of numbers a model gives, decided once on a whole sample; and whether they can be used at all."""

from __future__ import annotations

from typing import Final

import torch
from torch import Tensor

from holdfast.errors import HoldfastError, require, require_known
from holdfast.types import Note

KINDS: Final = ("logits", "probabilities", "log-probabilities", "sigmoid")
"""sigmoid: each class has a probability of its own, as multi-label models give. Only ever by the user's word."""
TOLERANCE = 2e-3
"""How far a row may sum from one: half precision rounds each of a thousand values."""
ROUNDED = 0.05
"""The farthest where files hold two or three decimals."""
TINY = 1e-30


def decide_kind(outputs: Tensor) -> str:
    """logits, probabilities or log-probabilities, from outputs (N, K) of a whole sample.

    One row may pass for either by chance, which is why batches must not decide each for itself.

    >>> decide_kind(torch.tensor([[0.25, 0.75], [1.0, 0.0]])), decide_kind(torch.tensor([[0.25, 0.75], [3.0, 0.0]]))
    ('probabilities', 'logits')
    """
    values = outputs.double()
    if bool((values >= -TOLERANCE).all()) and _sums_to_one(values, _rounding(values)):
        return "probabilities"
    return "log-probabilities" if (values <= TOLERANCE).all() and _sums_to_one(values.exp()) else "logits"


def to_logits(outputs: Tensor, kind: str) -> Tensor:
    """Outputs (B, K) as logits whose softmax gives the model's own probabilities.

    For sigmoid outputs the log-odds: their order is the scores', their softmax no one's claim.
    """
    if kind == "probabilities":
        return outputs.clamp_min(TINY).log()
    if kind == "sigmoid":
        return torch.logit(outputs, eps=1e-7)
    require_known("kind of outputs", kind, KINDS)
    return outputs


def kind_warnings(outputs: Tensor, kind: str) -> list[Note]:
    """What to say of logits that look like something else."""
    if kind != "logits" or outputs.shape[1] == 1 or not bool(((outputs >= 0) & (outputs <= 1)).all()):
        return []
    text = "all outputs lie in [0, 1] but do not sum to one: taken for logits, which makes every confidence low"
    remedy = "if they are probabilities, give --output probabilities; if each class has a sigmoid of its own, "
    return [Note("output-kind", text, remedy + "--output sigmoid", "warning")]


def check_finite(outputs: Tensor, of: str = "the sample") -> None:
    """Refuse NaN and infinity; minus infinity passes, as the logarithm of a probability of zero."""
    bad = (outputs.isnan() | (outputs == float("inf"))).any(1) | (outputs == float("-inf")).all(1)
    if not bool(bad.any()):
        return
    first = int(bad.nonzero()[0])
    raise HoldfastError(
        f"the model gives NaN or infinity for {int(bad.sum())} of {len(outputs)} images, the first at position {first} "
        f"of {of}; check its weights and its preprocessing, and try --precision fp32"
    )


def check_classes(outputs: Tensor) -> None:
    """Refuse a single output: what it says of two classes depends on a threshold nobody stated."""
    require(
        outputs.shape[1] > 1,
        "the model gives one output per image; for two classes wrap it in a python: function that returns "
        "torch.cat([-z, z], 1) / 2, where z is its logit",
    )


def change(first: Tensor, second: Tensor) -> float:
    """The largest difference between two answers to the same images, relative to their spread; 0 where none."""
    both = torch.stack([first, second]).double()
    both = torch.where(both.isfinite(), both, torch.zeros_like(both))
    return float((both[0] - both[1]).abs().max()) / (float(both.std()) or 1.0)


def _sums_to_one(values: Tensor, slack: float = 0.0) -> bool:
    return bool(((values.sum(1) - 1).abs() <= TOLERANCE + slack).all())


def _rounding(values: Tensor) -> float:
    """What rounding to two or three decimals may add up to in a row; 0 where values have more."""
    for step in (1e-2, 1e-3):
        if bool(((values / step).round() * step - values).abs().max() < 1e-6):
            return min(ROUNDED, values.shape[1] * step / 2)
    return 0.0
