"""Things that are called like a network but are none, behind torch's face."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn


class Called(nn.Module):
    """Any callable from images to outputs."""

    def __init__(self, function: Callable[[Tensor], Any]) -> None:
        super().__init__()
        self.function = function

    def forward(self, x: Tensor) -> Any:
        return self.function(x)


class FixedBatch(nn.Module):
    """A network that takes exactly so many images at a time: batches are cut, and the last one padded with its own
    last image. Where the answer has several parts, each is put together from the pieces."""

    def __init__(self, net: nn.Module, size: int) -> None:
        super().__init__()
        self.net = net
        self.size = size

    def forward(self, x: Tensor) -> Any:
        n = len(x)
        if lacking := -n % self.size:
            x = torch.cat([x, x[-1:].expand(lacking, *x.shape[1:])])
        return _first([self.net(piece) for piece in x.split(self.size)], n)


def _first(answers: list[Any], n: int) -> Any:
    """The first n rows of what several calls returned, in the structure they returned it in."""
    if isinstance(answers[0], Tensor):
        return torch.cat(answers)[:n]
    if isinstance(answers[0], dict):
        return {name: _first([answer[name] for answer in answers], n) for name in answers[0]}
    return [_first(list(parts), n) for parts in zip(*answers, strict=True)]
