"""The running mean of raw gradients that Friendly SAM takes away from its ascent direction, and how it is saved."""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from holdfast.errors import require
from holdfast.optim.foreach import Tensors, add_scaled, copied_like, full, lies_like, own_parts, spread_like

EMA_KEY = "ascent_ema"
"""Where a parameter's gradient average stands in ``state_dict()``."""


@dataclass(eq=False)
class _Cohort:
    """Parameters that have had all their gradients together. empty: whether their means hold none yet."""

    empty: Tensor
    one: Tensor
    size: int


@dataclass(frozen=True, eq=False)
class Due:
    """How some means are to move: by gain · residual, or the whole residual if they are empty."""

    cohort: _Cohort
    means: Tensors
    residual: Tensors
    gain: float


class GradientAverage:
    """m of Friendly SAM: m_t = λ·m_{t−1} + (1−λ)·g, and m = g at first.

    ``residual`` hands out g − m_{t−1}; ``commit`` adds what is due, unless the step went wrong, and neither waits
    for the device: the first mean is 0 + 1·g, every later one m + (1−λ)·(g − m), chosen by a tensor. version: changes
    when means have come to lie elsewhere.
    """

    def __init__(self) -> None:
        self._mean: dict[Tensor, tuple[Tensor, _Cohort]] = {}
        self.due: list[Due] = []
        self.version = 0

    def __getitem__(self, parameter: Tensor) -> Tensor:
        return self._mean[parameter][0]

    def __contains__(self, parameter: Tensor) -> bool:
        return parameter in self._mean

    def residual(self, params: Tensors, grads: Tensors, *, lmbda: float, in_place: bool = False) -> Tensors:
        """g − m_{t−1} for each parameter; the means will follow at the next commit. Gradients lie as parameters do.

        in_place: leave it in the memory of the gradients.
        """
        try:
            known = [self._mean[p] for p in params]
        except KeyError:
            self.begin(params)
            known = [self._mean[p] for p in params]
        parts = own_parts(params)
        if not all(lies_like(mean, part) for part, (mean, _) in zip(parts, known, strict=True)):
            known = self._moved(params, parts)
        means = [mean for mean, _ in known]
        if in_place:
            torch._foreach_sub_(residual := grads, means)
        else:
            residual = list(torch._foreach_sub(grads, means))
        for cohort in dict.fromkeys(cohort for _, cohort in known):
            mine = [i for i, (_, own) in enumerate(known) if own is cohort]
            together = cohort if len(mine) == cohort.size else self._part(cohort, [params[i] for i in mine])
            self.due.append(Due(together, [means[i] for i in mine], [residual[i] for i in mine], 1 - lmbda))
        return residual

    def begin(self, params: Tensors) -> None:
        """Means of 0, which hold no gradient, for all parameters that have none."""
        if new := [p for p in params if p not in self._mean]:
            self._join(new, [torch.zeros_like(part, requires_grad=False) for part in own_parts(new)], empty=True)

    def _moved(self, params: Tensors, parts: Tensors) -> list[tuple[Tensor, _Cohort]]:
        """The means beside their parameters again, which were moved or cast since."""
        for p, part in zip(params, parts, strict=True):
            mean, cohort = self._mean[p]
            if not lies_like(mean, part):
                self._mean[p] = copied_like(part, mean, "the mean gradient"), cohort
                cohort.empty, cohort.one = cohort.empty.to(p.device), cohort.one.to(p.device)
        self.version += 1
        return [self._mean[p] for p in params]

    def _part(self, cohort: _Cohort, params: Tensors) -> _Cohort:
        """A cohort of their own for parameters that got a gradient without the others: those may still be empty."""
        own = _Cohort(cohort.empty.clone(), cohort.one, len(params))
        cohort.size -= len(params)
        self._mean |= {p: (self._mean[p][0], own) for p in params}
        self.version += 1
        return own

    def _join(self, params: Tensors, means: Tensors, *, empty: bool) -> None:
        device = params[0].device
        one = torch.ones((), device=device, dtype=torch.float64 if device.type == "cpu" else torch.float32)
        cohort = _Cohort(torch.full((), empty, device=device), one, len(params))
        self._mean |= {p: (mean, cohort) for p, mean in zip(params, means, strict=True)}

    def commit(self, bad: Tensor | None) -> None:
        """Move the means, except where ``bad`` (0 or 1) says that the step is skipped."""
        for due in self.due:
            empty = due.cohort.empty
            add_scaled(due.means, due.residual, torch.where(empty, due.cohort.one, due.gain), unless=bad)
            if bad is None:
                empty.fill_(False)
            else:
                torch.logical_and(empty, bad, out=empty)
        self.due = []

    def kept(self) -> dict[Tensor, Tensor]:
        """The means that hold a gradient; while none does, all, which are 0. Waits for the device."""
        cohorts = dict.fromkeys(cohort for _, cohort in self._mean.values())
        held = {cohort for cohort in cohorts if not bool(cohort.empty)} or cohorts
        kept = {p: mean for p, (mean, cohort) in self._mean.items() if cohort in held}
        return dict(zip(kept, spread_like(list(kept), list(kept.values())), strict=True))

    def load(self, means: dict[Tensor, Tensor]) -> None:
        """Take over what was ``kept``."""
        self._mean, self.due = {}, []
        if means:
            params, parts = list(means), list(means.values())
            held = any(bool(full(mean.abs().sum())) for mean in spread_like(params, parts))
            self._join(params, parts, empty=not held)


def with_averages(state: Mapping[str, Any], params: Iterable[Tensor], kept: Mapping[Tensor, Tensor]) -> dict[str, Any]:
    """A base optimiser's state with the averages of those parameters that have one."""
    entries = state["state"]
    averages = {n: {**entries.get(n, {}), EMA_KEY: kept[p]} for n, p in enumerate(params) if p in kept}
    return {**state, "state": {**entries, **averages}}


def without_averages(state: Mapping[str, Any], params: Tensors) -> tuple[dict[str, Any], dict[Tensor, Tensor]]:
    """(A base optimiser's state, the averages by parameter). Parameters have the numbers that the groups give them."""
    numbers = [number for group in state["param_groups"] for number in group["params"]]
    known = dict(zip(numbers, params, strict=False))  # torch refuses other counts
    plain, averages = {}, {}
    for number, own in state["state"].items():
        if EMA_KEY in own:
            other = f"the optimiser {len(known)} parameters; is it another model's?"
            require(number in known, f"the state has an {EMA_KEY} of parameter {number}, {other}")
            averages[known[number]] = copied_like(known[number], own[EMA_KEY], f"{EMA_KEY} of parameter {number}")
        if rest := {key: value for key, value in own.items() if key != EMA_KEY}:
            plain[number] = rest
    if plain and not averages and any(group.get("sigma") for group in state["param_groups"]):
        warnings.warn(
            f"the state is of a friendly ascent but has no {EMA_KEY}, so its mean begins anew; what took it out? "
            "torch.distributed.checkpoint does with flatten_optimizer_state_dict=True, so leave that at False",
            stacklevel=4,  # this, load_state_dict and what keeps it from being differentiated, the caller
        )
    return {**state, "state": plain}, averages
