"""The step of the base optimiser inside a sharpness-aware one."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.optim import SGD, Optimizer


def descend(base: Optimizer, bad: Tensor | None) -> None:
    """A step, unless ``bad`` is 1. Decided on the device where the base optimiser's kernels can skip by themselves."""
    fused = all(group.get("fused") for group in base.param_groups)  # a loaded state may have changed it
    ready = fused and _begin_momentum(base)
    if bad is None:
        base.step()
    elif ready and getattr(base, "_step_supports_amp_scaling", False):
        base.found_inf = bad  # type: ignore[attr-defined]
        try:
            base.step()
        finally:
            del base.found_inf  # type: ignore[attr-defined]
    elif not bool(bad):
        base.step()


def _begin_momentum(base: Optimizer) -> bool:
    """Give fused SGD its first momentum. False: this step cannot be left to the kernel.

    Fused SGD takes unset memory for its first momentum, and a skipped step would leave it unset; nor can it begin
    with some parameters later than with others. Zeros do the same without that, except under dampening, which
    spares the first gradient only.
    """
    if not isinstance(base, SGD) or len(base.state) == sum(len(group["params"]) for group in base.param_groups):
        return True
    for group in base.param_groups:
        if not group["momentum"]:
            continue
        fresh = [p for p in group["params"] if p.grad is not None and "momentum_buffer" not in base.state.get(p, ())]
        if fresh and group["dampening"]:
            return False
        for p in fresh:
            base.state[p]["momentum_buffer"] = torch.zeros_like(p, memory_format=torch.preserve_format)
    return True
