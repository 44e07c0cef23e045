"""Torch optimisers from settings."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import torch
from torch import Tensor
from torch.optim import SGD, Adam, AdamW, Optimizer

from holdfast.optim.metrics import Adaptive, Euclidean, Fisher, Metric
from holdfast.optim.sam import SAM
from holdfast.settings import AscentSettings, OptimizerSettings
from holdfast.settings.ascents import Asam, FisherSam, Sam


def build_optimizer(
    settings: OptimizerSettings,
    parameters: Iterable[Tensor],
    ascent: AscentSettings | None = None,
    *,
    skip_nonfinite: bool = True,
) -> Optimizer:
    """The optimiser, fused, inside the ascent's if there is one.

    On a GPU its learning rate and radius are tensors there, so that a CUDA graph follows their schedules.
    """
    trained = [p for p in parameters if p.requires_grad]
    on_gpu = trained[0].is_cuda

    def setting(value: float) -> float | Tensor:
        return torch.tensor(value, device=trained[0].device) if on_gpu else value

    fused = all(p.is_floating_point() for p in trained)  # torch's fused kernels know no complex weights
    common: dict[str, Any] = {"lr": setting(settings.peak_lr), "weight_decay": settings.weight_decay, "fused": fused}
    kind: type[Optimizer]
    own: dict[str, Any]
    if settings.name == "sgd":
        kind, own = SGD, {"momentum": settings.momentum, "nesterov": settings.nesterov}
    else:
        kind = {"adam": Adam, "adamw": AdamW}[settings.name]
        own = {"betas": settings.betas, "capturable": on_gpu}
    if not isinstance(ascent, Sam):
        return kind(trained, **common, **own)
    return SAM(
        trained,
        kind,
        rho=setting(ascent.rho),
        metric=_metric(ascent),
        friendly=hasattr(ascent, "sigma"),
        sigma=getattr(ascent, "sigma", 0.0),
        lmbda=getattr(ascent, "lmbda", 0.9),
        skip_nonfinite=skip_nonfinite,
        **common,
        **own,
    )


def _metric(ascent: Sam) -> Metric:
    if isinstance(ascent, Asam):
        return Adaptive(ascent.eta, vectors=False)
    if isinstance(ascent, FisherSam):
        return Fisher(ascent.eta)
    return Euclidean()


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
