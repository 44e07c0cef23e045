"""What a source of networks hands over."""

from __future__ import annotations

from dataclasses import dataclass

from torch import nn

Size = int | tuple[int, int]
"""The side of square images, or (height, width)."""


@dataclass(frozen=True, eq=False)
class Raw:
    """A network before it is normalised.

    channels: how many the network itself takes. mean, std: what its published weights were trained with; None
    where it has none. notes: what the user should hear.
    """

    net: nn.Module
    channels: int
    mean: tuple[float, ...] | None = None
    std: tuple[float, ...] | None = None
    notes: tuple[str, ...] = ()


def both_sides(size: Size) -> tuple[int, int]:
    """(height, width).

    >>> both_sides(32), both_sides((28, 32))
    ((32, 32), (28, 32))
    """
    return (size, size) if isinstance(size, int) else size


def reason(error: BaseException) -> str:
    """The first line of what went wrong; libraries raise bare assertions and pages of text."""
    return (str(error).strip().splitlines() or [type(error).__name__])[0].rstrip(".")


def failure(name: str, size: Size | None, pretrained: bool, error: Exception) -> str:
    """What to say where a library could not build a network."""
    if pretrained:
        return (
            f"cannot get the published weights of {name}: {reason(error)}; "
            "without a network, bring the file along and give --weights FILE"
        )
    images = f"{describe(size)} images" if size is not None else "its own image size"
    return f"cannot build {name} for {images}: {reason(error)}; change --image-size or --model"


def describe(size: Size) -> str:
    """Height×width, for messages.

    >>> describe(32)
    '32x32'
    """
    height, width = both_sides(size)
    return f"{height}x{width}"


def head_note(head: str, theirs: int, ours: int) -> str:
    """What to say where a head does not fit its weights.

    >>> head_note("fc", 1000, 10)
    'head fc: the weights have 1000 classes, this model 10; replaced'
    """
    return f"head {head}: the weights have {theirs} classes, this model {ours}; replaced"
