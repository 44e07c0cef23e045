"""What stands around a network, as torch modules: normalisation as a layer, everything that images of the data need,
and what is called like a network but is not one (functions, fixed batches, ONNX sessions). Open this file to change
what is done to images in [0, 1], or to a network's outputs."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from math import isfinite
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import interpolate

from holdfast.errors import HoldfastError, require
from holdfast.models.source_types import Preprocessing, Sides

LUMINANCE = (0.299, 0.587, 0.114)
"""ITU-R 601, as PIL converts colour to grey."""
REMEDY = "wrap the model in a function that returns the logits alone, and give it as python:module:function"


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
    remedy = "use pixels, or put the network into holdfast.models.Normalised"
    raise HoldfastError(f"{type(model).__name__} has no normalisation of its own, and so no normalised space; {remedy}")


class PreprocessedModel(nn.Module):
    """Images (B, C, H, W) in [0, 1] at the data's size to outputs (B, K) in float32.

    In order: grey to colour or back, the network's own size, channel order and normalisation, the network, the one
    tensor it returns. size: what the network takes, None for any. crop: share of each side that its published
    evaluation keeps; images that come in at size / crop are cut as there, others resized.
    """

    def __init__(
        self, net: nn.Module, preprocessing: Preprocessing, *, channels: int, size: Sides | None, crop: float = 1.0
    ) -> None:
        super().__init__()
        preprocessing = preprocessing.for_channels(channels)
        mean, std = preprocessing.mean, preprocessing.std
        if preprocessing.bgr:
            mean, std = mean[::-1], std[::-1]
        self.preprocessing, self.channels, self.size, self.crop = preprocessing, channels, size, crop
        self.normalised = Normalised(net, mean, std)
        # Not through train(), which exported programs refuse.
        self.training = self.normalised.training = net.training

    @property
    def net(self) -> nn.Module:
        return self.normalised.net

    def with_preprocessing(self, preprocessing: Preprocessing) -> PreprocessedModel:
        """The same network, not a copy of it, behind other preprocessing."""
        other = PreprocessedModel(self.net, preprocessing, channels=self.channels, size=self.size, crop=self.crop)
        return other.to(self.normalised.mean.device)

    def forward(self, x: Tensor) -> Tensor:
        return rows(only_tensor(self.raw(x))[0]).float()

    def raw(self, x: Tensor) -> Any:
        """What the network itself returns."""
        x = fit_size(fit_channels(x, self.channels), self.size, self.crop)
        if self.preprocessing.bgr:
            x = x.flip(1)
        return self.normalised(x)


def fit_channels(x: Tensor, channels: int) -> Tensor:
    """Grey images three times over for a colour network; colour as luminance for a grey one.

    >>> fit_channels(torch.ones(1, 3, 1, 1), 1).item()
    1.0
    """
    if x.shape[1] == channels:
        return x
    if x.shape[1] == 1:
        return x.expand(-1, channels, -1, -1)
    if x.shape[1] == 3 and channels == 1:
        weights = torch.tensor(LUMINANCE, device=x.device, dtype=x.dtype).view(1, 3, 1, 1)
        return (x * weights).sum(1, keepdim=True)
    remedy = "only grey and colour can be turned into each other"
    raise HoldfastError(f"the model takes {channels} channels and the images have {x.shape[1]}; {remedy}")


def fit_size(x: Tensor, size: Sides | None, crop: float = 1.0) -> Tensor:
    """Images at the network's own size: their centre where they are as much larger as ``crop`` says, else resized,
    bilinear, antialiased when shrinking."""
    if size is None or tuple(x.shape[2:]) == size:
        return x
    if tuple(x.shape[2:]) == uncropped(size, crop):
        top, left = (x.shape[2] - size[0]) // 2, (x.shape[3] - size[1]) // 2
        return x[:, :, top : top + size[0], left : left + size[1]]
    return interpolate(x, size=size, mode="bilinear", antialias=True)


def uncropped(size: Sides, crop: float) -> Sides:
    """The size images have before the centre is cut out.

    >>> uncropped((224, 224), 224 / 256)
    (256, 256)
    """
    return int(size[0] / crop + 1e-6), int(size[1] / crop + 1e-6)


def only_tensor(output: Any) -> tuple[Tensor, str | None]:
    """(outputs, which part was taken or None for all of it). More than one candidate is refused, never guessed.

    >>> only_tensor({"logits": torch.zeros(1, 2), "features": torch.zeros(1, 8)})[1]
    "'logits' of a dict"
    """
    if isinstance(output, Tensor):
        return output, None
    kind = type(output).__name__
    named = output.get("logits") if isinstance(output, Mapping) else getattr(output, "logits", None)
    if isinstance(named, Tensor):
        return named, f"'logits' of a {kind}"
    if not isinstance(output, Mapping | tuple | list):
        raise HoldfastError(f"the model returns a {kind} without logits; {REMEDY}")
    parts = output.items() if isinstance(output, Mapping) else enumerate(output)
    tensors = [(name, part) for name, part in parts if isinstance(part, Tensor)]
    if len(tensors) != 1:
        what = ", ".join(f"{name} {tuple(part.shape)}" for name, part in tensors) or "none"
        why = f"{len(tensors)} tensors ({what}), and which are the logits is not said"
        raise HoldfastError(f"the model returns a {kind} with {why}; {REMEDY}")
    return tensors[0][1], f"the only tensor of a {kind}"


def rows(outputs: Tensor) -> Tensor:
    """Outputs as (B, K); maps of one pixel lose it, others are refused: they are features.

    >>> rows(torch.zeros(2, 5, 1, 1)).shape
    torch.Size([2, 5])
    """
    if outputs.ndim == 4 and outputs.shape[2:] == (1, 1):
        return outputs.flatten(1)
    if outputs.ndim != 2:
        what = "feature maps" if outputs.ndim == 4 else "no row of logits"
        shape = f"{tuple(outputs.shape)}: {what}, where (images, classes) is needed"
        raise HoldfastError(f"the model gives outputs of shape {shape}; {REMEDY}")
    if not outputs.is_floating_point():
        given = f"{str(outputs.dtype).removeprefix('torch.')} outputs, labels perhaps, where scores are needed"
        remedy = f"{REMEDY}, or write its predictions to a file and give --predictions FILE"
        raise HoldfastError(f"the model gives {given}; {remedy}")
    return outputs


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
