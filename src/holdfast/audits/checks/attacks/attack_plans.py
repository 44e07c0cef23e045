"""How much the check ``attacks`` does: radii, and images and steps by device."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Final

from holdfast.settings.fields import Bounded, Within

RADII: Final[Mapping[str, tuple[float, ...]]] = {
    "linf": (2 / 255, 4 / 255, 8 / 255, 16 / 255),
    "l2": (0.25, 0.5, 1.0, 2.0),
}

BACKWARD: Final = 3
"""A forward and a backward pass cost about three forward passes."""

Count = Annotated[int, Within(1)]


@dataclass(frozen=True)
class AttackBudget(Bounded):
    """What a device is given to do.

    searched: images of the attack without gradients, at most. unbounded: of the checks on gradients.
    surrogate_*: its training.
    """

    images: Count
    apgd_steps: Count
    queries: Count
    searched: Count
    long_steps: Count
    unbounded: Annotated[int, Within(0)]
    surrogate_images: Count
    surrogate_epochs: Count
    surrogate_model: str


BUDGETS: Final[Mapping[str, AttackBudget]] = {
    "cuda": AttackBudget(1000, 100, 1000, 1000, 100, 500, 50_000, 5, "cifar-resnet18"),
    "cpu": AttackBudget(100, 20, 100, 100, 40, 100, 1000, 6, "convnet"),
}
"""By device: on a CPU a thousand images would take longer than many a training."""


def radius_text(radius: float, norm: str) -> str:
    """A radius as people write it.

    >>> radius_text(8 / 255, "linf"), radius_text(0.5, "l2"), radius_text(0.1, "linf")
    ('8/255', '0.5', '25.5/255')
    """
    return f"{radius * 255:.4g}/255" if norm == "linf" else f"{radius:.4g}"
