"""The cells that methods with group labels tell apart."""

from __future__ import annotations

from typing import Literal

from torch import Tensor

from holdfast.errors import HoldfastError
from holdfast.methods.base import Context


def cells(context: Context, *, by: Literal["class", "group"], method: str) -> Tensor:
    """(N,) the class of each training sample, or its class and group as one number."""
    if by == "class":
        return context.labels
    unknown = int((context.groups < 0).sum())
    if unknown:
        remedy = "give the data a group column" if unknown == len(context.groups) else "fill in theirs"
        raise HoldfastError(
            f"{method} needs the group of every training sample, and {unknown} of {len(context.groups)} have none; "
            f"{remedy}, or use a method that needs no groups (lff, jtt)"
        )
    return context.labels * (int(context.groups.max()) + 1) + context.groups
