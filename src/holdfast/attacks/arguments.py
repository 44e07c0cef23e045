"""The types of what every attack takes: a classifier, a goal, and the ball that adversarial examples stay in."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Literal, TypedDict

from torch import Tensor

Classifier = Callable[[Tensor], Tensor]
"""Images (B, C, H, W) to logits (B, K)."""
LossName = Literal["ce", "margin", "dlr"]
Mode = Literal["eval", "as-is"]
AttackTarget = Tensor | Literal["least-likely"] | None
Norm = Literal["linf", "l2"]
Space = Literal["pixel", "normalised"]


class BallSettings(TypedDict, total=False):
    """What a ball is beside its radius; every attack takes these. Left out: an L∞ ball in pixels of [0, 1].

    space: "normalised" counts radius and steps in units of ``scale``, the deviation of each channel that a model
    divides by. bounds: the range of pixels. A pixel that is outside already may stay there.
    """

    norm: Norm
    space: Space
    scale: Tensor | Sequence[float] | None
    bounds: tuple[float, float]
