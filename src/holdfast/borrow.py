"""Borrow a model, give it back as it was."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm


@contextmanager
def evaluating(*models: nn.Module) -> Iterator[None]:
    """Put every module into evaluation mode; afterwards each has its own flag back."""
    flags = [(module, module.training) for model in models for module in model.modules()]
    for module, _ in flags:
        module.training = False
    try:
        yield
    finally:
        for module, flag in flags:
            module.training = flag


@contextmanager
def frozen_statistics(model: nn.Module) -> Iterator[None]:
    """Run forward passes that leave the model's running statistics as they are.

    For a second pass at moved weights, so that statistics are updated once a step. BatchNorm still normalises by the
    batch, as in training; buffers that any other module changes during its forward are put back afterwards.
    """
    tracking = [m for m in model.modules() if isinstance(m, _BatchNorm) and m.track_running_stats]
    obedient = {id(m) for m in tracking if type(m).forward in _OBEDIENT}
    others = [(m, name, b) for m in model.modules() if id(m) not in obedient for name, b in m._buffers.items()]
    held = [b for _, _, b in others if b is not None]
    versions = [b._version for b in held]
    values = [torch.empty_like(b) for b in held]
    _copy(values, held)
    for module in tracking:
        module.track_running_stats = False
    try:
        yield
    finally:
        for module in tracking:
            module.track_running_stats = True
        for owner, name, buffer in others:  # a forward may have put another tensor in its place
            owner._buffers[name] = buffer
        # Unchanged as far as autograd knows: a graph may hold it, so put it back behind autograd's back.
        _copy([b.data if b._version == v else b for b, v in zip(held, versions, strict=True)], values)


_OBEDIENT = (_BatchNorm.forward, nn.SyncBatchNorm.forward)
"""Forward passes known to leave their buffers alone when they are told not to track."""


@torch.no_grad()
def _copy(targets: list[Tensor], values: list[Tensor]) -> None:
    if targets:
        torch._foreach_copy_(targets, values)
