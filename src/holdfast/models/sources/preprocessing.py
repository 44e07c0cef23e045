"""What a network wants done to images in [0, 1] before it sees them, as a value that can be compared and undone."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from holdfast.errors import HoldfastError, require


@dataclass(frozen=True)
class Preprocessing:
    """(x - mean) / std with one value a channel, red first; then, with bgr, the channels in reverse order.

    One value speaks for every channel.

    >>> Preprocessing((0.5,), (0.25,)).undone()
    Preprocessing(mean=(-2.0,), std=(4.0,), bgr=False)
    """

    mean: tuple[float, ...] = (0.0,)
    std: tuple[float, ...] = (1.0,)
    bgr: bool = False

    def __post_init__(self) -> None:
        require(
            len(self.mean) == len(self.std) > 0,
            f"mean and std must be as long as each other, got {list(self.mean)} and {list(self.std)}",
        )

    def undone(self) -> Preprocessing:
        """The inverse of the affine part: what to put before a network that normalises once too often."""
        return Preprocessing(
            tuple(-m / s for m, s in zip(self.mean, self.std, strict=True)), tuple(1 / s for s in self.std)
        )

    def for_channels(self, channels: int) -> Preprocessing:
        """The same with exactly that many values.

        >>> Preprocessing((0.5,), (0.25,)).for_channels(3).mean
        (0.5, 0.5, 0.5)
        """
        if len(self.mean) == channels:
            return self
        if len(self.mean) == 1:
            return Preprocessing(self.mean * channels, self.std * channels, self.bgr)
        if channels == 1:  # a grey network behind colour settings: the average of them
            n = len(self.mean)
            return Preprocessing((sum(self.mean) / n,), (sum(self.std) / n,))
        raise HoldfastError(f"mean and std must have {channels} values, one a channel, got {list(self.mean)}")

    def __str__(self) -> str:
        if self == Preprocessing(self.mean, self.std) and set(self.mean) == {0.0} and set(self.std) == {1.0}:
            return "none"
        mean, std = (", ".join(f"{v:.4g}" for v in values) for values in (self.mean, self.std))
        return f"mean ({mean}), std ({std})" + (", blue first" if self.bgr else "")


NONE = Preprocessing()
IMAGENET = Preprocessing((0.485, 0.456, 0.406), (0.229, 0.224, 0.225))
HALF = Preprocessing((0.5,), (0.5,))


def stated(mean: Sequence[float] | None, std: Sequence[float] | None) -> Preprocessing | None:
    """What a model's settings say; None where they say nothing."""
    require((mean is None) == (std is None), "mean and std go together; give both or neither")
    if mean is None or std is None:
        return None
    return Preprocessing(tuple(map(float, mean)), tuple(map(float, std)))
