"""What is called like a network but is not one, as a torch module: functions, fixed batches, ONNX sessions."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn


class CallableModule(nn.Module):
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
        self.net, self.size = net, size

    def forward(self, x: Tensor) -> Any:
        n = len(x)
        if lacking := -n % self.size:
            x = torch.cat([x, x[-1:].expand(lacking, *x.shape[1:])])
        return _first([self.net(piece) for piece in torch.split(x, self.size)], n)


def in_batches_of(size: int | None, net: nn.Module, remedy: str) -> tuple[nn.Module, tuple[str, ...]]:
    """A network that takes any number of images, and what to tell the user. size: what it takes, None for any."""
    if size is None:
        return net, ()
    return FixedBatch(net, size), (f"takes batches of exactly {size}: they are cut and padded; {remedy}",)


def _first(answers: list[Any], n: int) -> Any:
    """The first n rows of what several calls returned, in the structure they returned it in."""
    if isinstance(answers[0], Tensor):
        return torch.cat(answers)[:n]
    if isinstance(answers[0], dict):
        return {name: _first([answer[name] for answer in answers], n) for name in answers[0]}
    return [_first(list(parts), n) for parts in zip(*answers, strict=True)]


class CastInput(nn.Module):
    """A network whose weights are of another precision than float32: images are brought to it."""

    def __init__(self, net: nn.Module, dtype: torch.dtype) -> None:
        super().__init__()
        self.net, self.dtype = net, dtype

    def forward(self, x: Tensor) -> Any:
        return self.net(x.to(self.dtype))


def in_its_own_precision(net: nn.Module) -> tuple[nn.Module, tuple[str, ...]]:
    """A network that takes float32 images, and what to tell the user about it."""
    dtype = next((p.dtype for p in net.parameters() if p.is_floating_point()), torch.float32)
    if dtype == torch.float32:
        return net, ()
    return CastInput(net, dtype), (f"weights are {str(dtype).removeprefix('torch.')}: images are turned into that",)


@dataclass(frozen=True)
class OnnxInput:
    """The images that a graph takes, and the name it has for them. None: any."""

    name: str
    dtype: torch.dtype
    batch: int | None
    channels: int | None
    size: tuple[int, int] | None
    channels_last: bool


class OnnxModule(nn.Module):
    """A graph in onnxruntime, called with torch tensors; its outputs by name."""

    def __init__(self, session: Any, taken: OnnxInput) -> None:
        super().__init__()
        self.session, self.taken = session, taken
        self.names = [item.name for item in session.get_outputs()]

    def forward(self, x: Tensor) -> dict[str, Tensor]:
        images = x.detach().to(self.taken.dtype)
        if self.taken.channels_last:
            images = images.permute(0, 2, 3, 1)
        answers = self.session.run(None, {self.taken.name: images.cpu().contiguous().numpy()})
        pairs = zip(self.names, answers, strict=True)
        return {name: torch.from_numpy(value).to(x.device) for name, value in pairs if hasattr(value, "shape")}
