"""A time budget: how many images the costly fronts may look at, so that an audit ends in about that time."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Mapping
from typing import Any, Final

from holdfast.errors import require
from holdfast.fronts.attacks import BUDGETS
from holdfast.fronts.corruptions import IMAGES as CORRUPTED
from holdfast.fronts.curvature import IMAGES as CURVED
from holdfast.fronts.saliency import IMAGES as SEEN

UNITS: Final = {"": 1, "s": 1, "m": 60, "h": 3600}
LEAST: Final = 16
"""Images under which a front's intervals would say nothing."""
WEIGHTS: Final[Mapping[str, float]] = {"corruptions": 0.25, "attacks": 0.5, "curvature": 0.15, "saliency": 0.1}
"""How the time that is left is shared among the costly fronts that are still to come."""
STRENGTHS_OF_EIGHT: Final = 16
BACKWARD: Final = 3
"""A forward and a backward pass cost about three forward passes."""


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


def passes(front: str, device: str) -> float:
    """About how many forward passes a front makes for every image it looks at."""
    if front == "attacks":
        plan = BUDGETS[device]
        steps = BACKWARD * (1 + 10 + 2 * plan.apgd_steps + 11) + plan.queries + 1
        return 4 * steps + BACKWARD * (plan.long_steps + 40)
    return {"corruptions": 3.0 * STRENGTHS_OF_EIGHT, "curvature": 3.0 * BACKWARD * 40, "saliency": 4.0 * BACKWARD}[
        front
    ]


def usual(front: str, device: str) -> int:
    """Images a front looks at when nobody is in a hurry."""
    return {
        "attacks": BUDGETS[device].images,
        "corruptions": CORRUPTED[device],
        "curvature": CURVED[device],
        "saliency": SEEN,
    }[front]


class Clock:
    """The budget of one audit. forward: seconds a forward pass of one image takes, set once it was measured."""

    def __init__(self, seconds: float, device: str, *, now: Callable[[], float] = time.monotonic) -> None:
        self.seconds, self.device, self.now = seconds, device, now
        self.started = now()
        self.forward = 0.0

    @property
    def left(self) -> float:
        return self.seconds - (self.now() - self.started)

    def settings(self, front: str, still: list[str], most: int) -> tuple[dict[str, Any], str]:
        """What to tell a front, and the user, so that it takes its share of what is left.

        still: fronts to come, this one among them. most: images there are.
        """
        if front not in WEIGHTS or self.forward <= 0:
            return {}, ""
        share = self.left * WEIGHTS[front] / sum(WEIGHTS[name] for name in still if name in WEIGHTS)
        wanted = min(usual(front, self.device), most)
        can = int(share / (self.forward * passes(front, self.device)))
        images = min(wanted, max(LEAST, can))
        if images == wanted:
            return {}, ""
        chosen: dict[str, Any] = {"images": images}
        text = f"{front}: {images} images instead of {wanted}"
        if front == "attacks" and can < LEAST:  # training the other model would take longer than all attacks
            chosen["black_box"] = False
            text += " and none made against another model"
        return chosen, f"{text}, to stay within the budget"
