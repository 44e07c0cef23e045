"""A time budget: how many images the costly checks may take, so that an audit ends in about that time."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final, Generic, TypeVar

from holdfast.errors import require
from holdfast.parts import CHECKS
from holdfast.types import Note

UNITS: Final = {"": 1, "s": 1, "m": 60, "h": 3600}
LEAST: Final = 16
"""Images under which a check's intervals would say nothing."""
HOPELESS: Final = 2
"""Attacks let go of images that fell; the passes below count them to the end."""
MORE: Final = 4
"""How much larger a second trial is."""
STEEP: Final = 0.25
CAREFUL: Final = 0.8
"""Part of the time that is planned with: a first trial may be slow and hide how steep the rest is."""
WORTH: Final = 1.25
"""A trial is not repeated for fewer additional images than this."""

T = TypeVar("T")


def parse_budget(text: str) -> float:
    """Seconds of a duration.

    >>> parse_budget("5m"), parse_budget("90"), parse_budget("1.5h")
    (300.0, 90.0, 5400.0)
    """
    match = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([smh]?)", text.strip())
    require(match is not None, f"budget must be a duration such as 90s, 5m or 1h, got {text!r}")
    assert match is not None
    seconds = float(match[1]) * UNITS[match[2]]
    require(seconds > 0, f"budget must be more than nothing, got {text!r}")
    return seconds


class Clock:
    """The budget of one audit. forward: seconds a forward pass of one image takes, set once it was measured."""

    def __init__(self, seconds: float, device: str, *, now: Callable[[], float] = time.monotonic) -> None:
        self.seconds, self.device, self.now = seconds, device, now
        self.started = now()
        self.forward = 0.0

    @property
    def left(self) -> float:
        return self.seconds - (self.now() - self.started)

    def share(self, check: str, still: Sequence[str]) -> float:
        """Seconds a costly check may take. still: checks to come, this one among them."""
        weights = sum(CHECKS[name].share for name in still)
        return max(0.0, self.left) * CHECKS[check].share / weights

    def hopeless(self, passes: float, share: float) -> str:
        """Why not even the least number of images can be measured; empty where they can, or where it is near.

        passes: forward passes per image.
        """
        least = LEAST * self.forward * passes
        if least <= HOPELESS * share:
            return ""
        return f"{LEAST} images would take about {least:.0f} s, and its share of the budget is {share:.0f} s"


@dataclass(frozen=True)
class Fitted(Generic[T]):
    """What a check came to in its share of the time. trials: (images, seconds) of those that chose the number."""

    outcome: T
    images: int
    trials: tuple[tuple[int, float], ...]

    def note(self, wanted: int) -> Note:
        """What was chosen, and on what grounds."""
        trial = " and ".join(f"{images} took {seconds:.1f} s" for images, seconds in self.trials)
        return Note("budget", f"{self.images} images instead of {wanted}, to stay within the budget ({trial})")


def fit_images(
    run: Callable[[int], tuple[T, float]],
    *,
    share: float,
    wanted: int,
    reserved: float = 0.0,
    useful: Callable[[T], bool] = lambda outcome: True,
) -> Fitted[T]:
    """As many images as a share of the time allows, found by trying few first.

    run: measures a number of images; what came of it and the seconds it took. reserved: seconds that the last run takes
    on top, whatever the number. Time is taken for a fixed part and one that grows with the images: a first trial bounds
    the second part from above, a second one tells the two apart. Where no larger number fits, the trial is the result.
    useful: whether more images would add to an outcome; not to one that does not apply.
    """
    if wanted <= LEAST:
        return Fitted(run(wanted)[0], wanted, ())
    made, first = run(LEAST)
    if not useful(made):
        return Fitted(made, wanted, ())
    trials = [(LEAST, first)]
    left, slope, fixed = share - first - reserved, first / LEAST, 0.0
    if wanted * slope > left and wanted > MORE * LEAST and MORE * first <= left / 2:
        made, second = run(MORE * LEAST)
        trials.append((MORE * LEAST, second))
        left -= second
        # a first run is slow for reasons of its own, which must not make the rest look free
        slope = max((second - first) / (LEAST * (MORE - 1)), STEEP * second / (MORE * LEAST))
        fixed = max(0.0, second - slope * MORE * LEAST)
    tried = trials[-1][0]
    images = min(wanted, int((CAREFUL * left - fixed) / slope) if slope > 0 else wanted)
    if images < WORTH * tried and images < wanted:
        return Fitted(made, tried, tuple(trials))
    return Fitted(run(images)[0], images, tuple(trials))
