"""Torch optimisers from settings."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import torch
from torch import Tensor
from torch.optim import SGD, Adam, AdamW, Optimizer

from holdfast.settings import OptimizerSettings


def build_optimizer(settings: OptimizerSettings, parameters: Iterable[Tensor]) -> Optimizer:
    """The optimiser, fused. On a GPU its learning rate is a tensor there, so a CUDA graph follows the schedule."""
    trained = [p for p in parameters if p.requires_grad]
    on_gpu = any(p.is_cuda for p in trained)
    lr = torch.tensor(settings.peak_lr, device=trained[0].device) if on_gpu else settings.peak_lr
    if settings.name == "sgd":
        return SGD(
            trained,
            lr=lr,
            momentum=settings.momentum,
            nesterov=settings.nesterov,
            weight_decay=settings.weight_decay,
            fused=True,
        )
    kind: type[Adam] = {"adam": Adam, "adamw": AdamW}[settings.name]
    return kind(
        trained,
        lr=lr,
        betas=settings.betas,
        weight_decay=settings.weight_decay,
        fused=True,
        capturable=on_gpu,
    )


def set_lr(optimizer: Optimizer, lr: float) -> None:
    """Change the rate in place, where it lives, without waiting for the device."""
    for group in optimizer.param_groups:
        if isinstance(group["lr"], Tensor):
            group["lr"].fill_(lr)
        else:
            group["lr"] = lr


def trained_parameters(optimizer: Optimizer) -> Iterator[Tensor]:
    """Every parameter the optimiser moves."""
    for group in optimizer.param_groups:
        yield from group["params"]
