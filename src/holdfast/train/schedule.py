"""What follows the steps of a training: the learning rate, a pure function of the step, and an average of weights."""

from __future__ import annotations

import math
from copy import deepcopy

import torch
from torch import Tensor, nn

from holdfast.settings import ScheduleSettings


def rate_factor(settings: ScheduleSettings, step: int, *, steps_per_epoch: int, epochs: int) -> float:
    """What the peak rate is multiplied by at a step, counted from 0.

    >>> cosine = ScheduleSettings(name="cosine")
    >>> [round(rate_factor(cosine, s, steps_per_epoch=1, epochs=4), 3) for s in range(4)]
    [1.0, 0.854, 0.5, 0.146]
    """
    warmup = (settings.warmup or 0.0) * steps_per_epoch  # None: nobody chose one
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


class WeightAverage:
    """Exponential average of parameters; other buffers (BatchNorm statistics) follow the model.

    The decay rises as min(decay, (1 + t) / (10 + t)), so that a short training is not dominated by its
    initial weights. Everything stays on the device.
    """

    def __init__(self, model: nn.Module, decay: float) -> None:
        self.source = model
        self.model = deepcopy(model).requires_grad_(False).eval()
        self.decay = decay
        self.step = torch.zeros((), device=next(model.parameters()).device)
        self._averages: list[Tensor] = list(self.model.parameters())
        self._weights: list[Tensor] = list(model.parameters())
        self._buffers = list(zip(self.model.buffers(), model.buffers(), strict=True))

    @torch.no_grad()
    def update(self) -> None:
        self.step += 1
        decay = ((1 + self.step) / (10 + self.step)).clamp(max=self.decay)
        moved = torch._foreach_mul(self._weights, 1 - decay)
        torch._foreach_mul_(self._averages, decay)
        torch._foreach_add_(self._averages, moved)
        for average, buffer in self._buffers:
            average.copy_(buffer)

    def state_dict(self) -> dict[str, object]:
        return {"step": self.step, "model": self.model.state_dict()}

    def load_state_dict(self, state: dict[str, object]) -> None:
        self.step.copy_(state["step"])  # type: ignore[arg-type]
        self.model.load_state_dict(state["model"])  # type: ignore[arg-type]
