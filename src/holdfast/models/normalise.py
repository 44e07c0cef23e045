"""Normalisation as a model's first layer, so that everything outside speaks of pixels in [0, 1]."""

from __future__ import annotations

from collections.abc import Sequence
from math import isfinite

import torch
from torch import Tensor, nn

from holdfast.errors import HoldfastError, require


class Normalised(nn.Module):
    """A network behind ``(x - mean) / std``.

    x: float images (B, C, H, W) in [0, 1]. mean, std: one value for each channel that ``net`` takes, kept as
    buffers (C, 1, 1) and saved with the weights. Grey images (B, 1, H, W) meet a colour net by broadcasting:
    every channel sees the same picture.

    >>> model = Normalised(nn.Flatten(), mean=[0.5], std=[0.25])
    >>> model(torch.tensor([[[[0.0, 1.0]]]]))
    tensor([[-2.,  2.]])
    """

    mean: Tensor
    std: Tensor

    def __init__(self, net: nn.Module, mean: Sequence[float], std: Sequence[float]) -> None:
        super().__init__()
        require(len(mean) == len(std) > 0, f"mean and std must be as long as each other, got {mean} and {std}")
        require(all(map(isfinite, mean)), f"mean must be finite, got {mean}")
        require(all(isfinite(s) and s > 0 for s in std), f"std must be finite and > 0, got {std}")
        self.register_buffer("mean", torch.tensor(mean, dtype=torch.float32).view(-1, 1, 1))
        self.register_buffer("std", torch.tensor(std, dtype=torch.float32).view(-1, 1, 1))
        self.net = net

    def forward(self, x: Tensor) -> Tensor:
        if not x.is_floating_point():  # 0..255 would pass through and give nonsense
            raise HoldfastError(f"images must be float in [0, 1], got {x.dtype}; divide bytes by 255")
        logits: Tensor = self.net((x - self.mean) / self.std)
        return logits

    def extra_repr(self) -> str:
        mean, std = (", ".join(f"{value:.4g}" for value in numbers(buffer)) for buffer in (self.mean, self.std))
        return f"mean ({mean}), std ({std})"


def numbers(values: Tensor) -> tuple[float, ...]:
    """A buffer as plain numbers that give the same float32 back."""
    return tuple(values.flatten().tolist())


def deviation(model: nn.Module) -> Tensor:
    """(C,) what a model divides each channel by."""
    for module in model.modules():
        if isinstance(module, Normalised):
            return module.std.flatten()
    raise HoldfastError(
        f"{type(model).__name__} has no normalisation of its own, so there is no normalised space to speak of; use "
        "pixels, or put the network into holdfast.models.Normalised"
    )
