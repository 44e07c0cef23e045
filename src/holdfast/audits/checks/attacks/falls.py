"""Which images go wrong under which attack, and how far each of them holds."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import torch
from torch import Tensor

from holdfast.attacks.norms import Norm
from holdfast.audits.checks.verdicts import FALLS, WRONG

Key = tuple[str, str, float]
"""Attack, access, radius."""
WHITE, BLACK, NONE = "white-box", "black-box", "none"


def any_of(wrong: Mapping[Key, Tensor], radius: float, chosen: Callable[[Key], bool]) -> Tensor:
    """(N,) images that at least one of the chosen attacks of a radius gets wrong; some see the first images only."""
    found = torch.zeros_like(wrong["clean", NONE, 0.0])
    for key, value in wrong.items():
        if key[2] == radius and chosen(key):
            found[: len(value)] |= value
    return found


def fallen(wrong: Mapping[Key, Tensor], norm: Norm) -> list[str]:
    """What each image can bear: the smallest radius at which some attack brings it down."""
    radii = sorted({key[2] for key in wrong if key[2]})
    said = [f"withstands {radius_text(radii[-1], norm)}"] * len(wrong["clean", NONE, 0.0])
    for radius in reversed(radii):
        for i in any_of(wrong, radius, lambda key: True).nonzero().flatten().tolist():
            said[i] = f"{FALLS}{radius_text(radius, norm)}"
    for i in wrong["clean", NONE, 0.0].nonzero().flatten().tolist():
        said[i] = WRONG
    return said


def radius_text(radius: float, norm: Norm) -> str:
    """A radius as people write it.

    >>> radius_text(8 / 255, "linf"), radius_text(0.5, "l2"), radius_text(0.1, "linf")
    ('8/255', '0.5', '25.5/255')
    """
    return f"{radius * 255:.4g}/255" if norm == "linf" else f"{radius:.4g}"
