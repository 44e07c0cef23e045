"""The learning rate as a pure function of the step: nothing to save, nothing to restore."""

from __future__ import annotations

import math

from holdfast.settings import ScheduleSettings


def rate_factor(settings: ScheduleSettings, step: int, *, steps_per_epoch: int, epochs: int) -> float:
    """What the peak rate is multiplied by at a step, counted from 0.

    >>> cosine = ScheduleSettings(name="cosine")
    >>> [round(rate_factor(cosine, s, steps_per_epoch=1, epochs=4), 3) for s in range(4)]
    [1.0, 0.854, 0.5, 0.146]
    """
    warmup = settings.warmup * steps_per_epoch
    if step < warmup:
        return (step + 1) / (warmup + 1)
    epoch = step // steps_per_epoch
    if settings.name == "cosine":
        done = (step - warmup) / max(1.0, epochs * steps_per_epoch - warmup)
        return 0.5 * (1 + math.cos(math.pi * min(1.0, done)))
    if settings.name == "step":
        return float(settings.gamma ** (epoch // settings.step_size))
    if settings.name == "multistep":
        return float(settings.gamma ** sum(epoch >= m for m in settings.milestones))
    return 1.0
