"""Torch optimisers from settings."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any

import torch
from torch import Tensor
from torch.optim import SGD, Adam, AdamW, Optimizer

from holdfast.settings import OptimizerSettings


def build_optimizer(
    settings: OptimizerSettings,
    parameters: Iterable[Tensor],
    around: Callable[..., Optimizer] | None = None,
    *,
    skip_nonfinite: bool = True,
    fused: bool = True,
) -> Optimizer:
    """The optimiser that settings name. around: makes that of an ascent (``Ascent.optimizer``).

    fused: use torch's fused kernels on a CPU too; they are faster and round differently. On a GPU they are always used.

    On a GPU its learning rate and radius are tensors there, so that a CUDA graph follows their schedules.
    """
    trained = [p for p in parameters if p.requires_grad]
    on_gpu = trained[0].is_cuda

    def scheduled(value: float) -> float | Tensor:
        return torch.tensor(value, device=trained[0].device) if on_gpu else value

    # torch's fused kernels know no complex weights
    fused = (fused or on_gpu) and all(p.is_floating_point() for p in trained)
    options: dict[str, Any] = {
        "lr": scheduled(settings.peak_lr),
        "weight_decay": settings.weight_decay,
        "fused": fused,
    }
    kind: type[Optimizer]
    own: dict[str, Any]
    if settings.name == "sgd":
        kind, own = SGD, {"momentum": settings.momentum, "nesterov": settings.nesterov}
    else:
        kind = {"adam": Adam, "adamw": AdamW}[settings.name]
        own = {"betas": settings.betas, "capturable": on_gpu}
    if around is None:
        return kind(trained, **options, **own)
    return around(trained, kind, scheduled=scheduled, skip_nonfinite=skip_nonfinite, **options, **own)


def set_option(optimizer: Optimizer, name: str, value: float) -> None:
    """Change an option such as ``lr`` or ``rho`` where it lives, without waiting for the device."""
    for group in optimizer.param_groups:
        if isinstance(group[name], Tensor):
            group[name].fill_(value)
        else:
            group[name] = value


def trained_parameters(optimizer: Optimizer) -> Iterator[Tensor]:
    """Every parameter the optimiser moves."""
    for group in optimizer.param_groups:
        yield from group["params"]
