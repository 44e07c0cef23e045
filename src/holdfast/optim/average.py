"""The running mean of raw gradients that Friendly SAM takes away from its ascent direction."""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from torch import Tensor

Tensors = list[Tensor]


@dataclass
class _Cohort:
    """Parameters that got their first gradient together.

    seeded: whether their mean holds one yet. surely_seeded: whether the host knows that it does.
    """

    seeded: Tensor
    members: set[Tensor] = field(default_factory=set)
    surely_seeded: bool = False


class GradientAverage:
    """m of Friendly SAM: m_t = λ·m_{t−1} + (1−λ)·g, and m = g at first.

    ``residual`` hands out g − m_{t−1}; ``commit`` adds what is due, unless the step went wrong, and neither waits
    for the device: the first mean is 0 + 1·g, every later one m + (1−λ)·(g − m), chosen by a tensor.
    """

    def __init__(self) -> None:
        self._mean: dict[Tensor, Tensor] = {}
        self._cohorts: list[_Cohort] = []
        self._due: list[tuple[_Cohort, Tensors, Tensors, float]] = []

    def __getitem__(self, parameter: Tensor) -> Tensor:
        return self._mean[parameter]

    def __contains__(self, parameter: Tensor) -> bool:
        return parameter in self._mean

    def residual(self, params: Tensors, grads: Tensors, *, lmbda: float) -> Tensors:
        """g − m_{t−1} for each parameter; the means will follow at the next commit."""
        new = [p for p in params if p not in self._mean]
        if new:
            device = new[0].device
            self._cohorts.append(_Cohort(torch.zeros((), dtype=torch.bool, device=device), set(new)))
            self._mean |= {p: torch.zeros_like(p, memory_format=torch.preserve_format) for p in new}
        residual = [
            d if d.stride() == self._mean[p].stride() else torch.empty_like(self._mean[p]).copy_(d)
            for p, d in zip(params, torch._foreach_sub(grads, [self._mean[p] for p in params]), strict=True)
        ]
        for cohort in self._cohorts:
            mine = [i for i, p in enumerate(params) if p in cohort.members]
            if mine:
                means = [self._mean[params[i]] for i in mine]
                self._due.append((cohort, means, [residual[i] for i in mine], 1 - lmbda))
        return residual

    def forget(self) -> None:
        """Drop what is due from a step that was never finished."""
        self._due = []

    def commit(self, bad: Tensor | None) -> None:
        """Move the means, except where ``bad`` (a boolean tensor) says that the step is skipped."""
        for cohort, means, residual, gain in self._due:
            rate = gain if cohort.surely_seeded else torch.where(cohort.seeded, gain, cohort.seeded.double() + 1)
            add_unless(means, residual, rate, bad)
            if bad is not None:
                cohort.seeded |= ~bad
            elif not cohort.surely_seeded:
                cohort.seeded.fill_(True)
                cohort.surely_seeded = True
        self._due = []

    def seeded(self) -> dict[Tensor, Tensor]:
        """The means that hold at least one gradient. Waits for the device."""
        return {p: self._mean[p] for cohort in self._cohorts if bool(cohort.seeded) for p in cohort.members}

    def load(self, means: dict[Tensor, Tensor]) -> None:
        """Take over means that hold gradients."""
        self._mean, self._cohorts, self._due = dict(means), [], []
        if means:
            device = next(iter(means)).device
            self._cohorts = [_Cohort(torch.ones((), dtype=torch.bool, device=device), set(means), surely_seeded=True)]


def add_unless(targets: Tensors, values: Tensors, rate: float | Tensor, bad: Tensor | None = None) -> None:
    """targets += rate · values in place, or nothing at all where ``bad`` is true; decided on the device.

    Torch's fused descent kernel is the one multi-tensor operation with such a switch; maximising makes it an ascent.
    It goes by memory: a target and its value must have the same strides.
    """
    for device, dtype in {(t.device, t.dtype) for t in targets}:
        mine = [i for i, t in enumerate(targets) if t.device == device and t.dtype == dtype]
        scalar = torch.float64 if device.type == "cpu" else torch.float32  # what the kernels read
        torch._fused_sgd_(
            [targets[i] for i in mine],
            [values[i] for i in mine],
            [],
            weight_decay=0.0,
            momentum=0.0,
            lr=rate.to(device, scalar) if isinstance(rate, Tensor) else rate,
            dampening=0.0,
            nesterov=False,
            maximize=True,
            is_first_step=False,
            grad_scale=None,
            found_inf=None if bad is None else bad.to(device, torch.float32),
        )
