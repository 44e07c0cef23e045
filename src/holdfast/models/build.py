"""A model by name, ready to train: the network, its head for these classes, normalisation in front."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from holdfast.errors import HoldfastError, require
from holdfast.models.architecture import Raw, Size, both_sides, describe, reason
from holdfast.models.names import resolve, source
from holdfast.models.normalise import Normalised
from holdfast.models.weight_files import read_tensors
from holdfast.models.weights import load_tensors
from holdfast.module_state import evaluating


@dataclass(frozen=True, eq=False)
class Built:
    """A model, the full name it was found under, and what the user should hear about how it was made."""

    model: Normalised
    name: str
    notes: tuple[str, ...] = ()


def build_model(
    name: str,
    *,
    num_classes: int,
    in_channels: int = 3,
    image_size: Size | None = None,
    mean: Sequence[float] | None = None,
    std: Sequence[float] | None = None,
    pretrained: bool = False,
    weights: str | Path | None = None,
) -> Built:
    """The model of that name for images (B, in_channels, H, W) in [0, 1].

    name: one of holdfast's own, ``timm:NAME``, ``torchvision:NAME``, or a bare name that is looked up in that
    order. image_size: a side, or (height, width); a model that cannot take it is refused here rather than in
    the first step. mean, std: one value a channel, in [0, 1]; weights that bring their own win. Three values
    for grey images make a colour network that sees the grey picture three times. pretrained: start from what
    the library publishes. weights: start from a file. Fresh layers draw from torch's global generator.

    >>> built = build_model("convnet", num_classes=10, in_channels=1, mean=[0.3], std=[0.2])
    >>> built.model(torch.rand(2, 1, 16, 16)).shape
    torch.Size([2, 10])
    """
    require(num_classes >= 1, f"num_classes must be >= 1, got {num_classes}")
    require(in_channels >= 1, f"in_channels must be >= 1, got {in_channels}")
    require(image_size is None or min(both_sides(image_size)) >= 1, f"image_size must be >= 1, got {image_size}")
    require(
        not (pretrained and weights),
        f"pretrained and weights ({weights}) exclude each other; give one of them",
    )
    library, inner = resolve(name)
    tensors = read_tensors(weights) if weights is not None else None
    colour = pretrained or (mean is not None and len(mean) == 3) or (tensors is not None and _in_colour(tensors))
    raw: Raw = source(library).make(
        inner,
        num_classes=num_classes,
        channels=3 if in_channels == 1 and colour else in_channels,
        size=image_size,
        pretrained=pretrained,
    )
    full_name = inner if library == "holdfast" else f"{library}:{inner}"
    model = Normalised(raw.net, *_normalisation(raw, mean, std))
    notes = list(raw.notes)
    if raw.mean is not None:
        notes.append(f"normalisation from the weights: {model.extra_repr()}")
    if raw.channels == 3 and in_channels == 1:
        notes.append(f"{full_name} takes colour: it sees grey images three times over")
    if tensors is not None:
        notes += load_tensors(model, tensors, origin=str(weights))
    if image_size is not None:
        _try_out(model, full_name, num_classes, in_channels, image_size)
    return Built(model, full_name, tuple(notes))


def _normalisation(
    raw: Raw, mean: Sequence[float] | None, std: Sequence[float] | None
) -> tuple[Sequence[float], Sequence[float]]:
    """One mean and one deviation for each channel the network takes."""
    require((mean is None) == (std is None), "mean and std go together; give both or neither")
    if raw.mean is not None and raw.std is not None:
        return raw.mean, raw.std
    if mean is None or std is None:
        return (0.0,) * raw.channels, (1.0,) * raw.channels
    if len(mean) == len(std) == 1:
        mean, std = list(mean) * raw.channels, list(std) * raw.channels
    require(
        len(mean) == len(std) == raw.channels,
        f"mean and std must have {raw.channels} values, one a channel, got {list(mean)} and {list(std)}",
    )
    return mean, std


def _in_colour(tensors: dict[str, Tensor]) -> bool:
    """Whether the first layer takes three channels; deeper ones take more, depthwise ones take one."""
    return any(value.ndim == 4 and value.shape[1] == 3 for value in tensors.values())


def _try_out(model: Normalised, name: str, num_classes: int, in_channels: int, size: Size) -> None:
    """Refuse a network that cannot take these images or does not answer with one logit a class."""
    try:
        with evaluating(model), torch.no_grad():
            logits = model(torch.zeros(1, in_channels, *both_sides(size)))
    except Exception as error:  # architectures refuse sizes in many ways
        raise HoldfastError(
            f"{name} cannot take {describe(size)} images: {reason(error)}; change --image-size or --model"
        ) from error
    got = tuple(logits.shape) if isinstance(logits, Tensor) else type(logits).__name__
    require(
        got == (1, num_classes),
        f"{name} is no image classifier: it gives {got} instead of {(1, num_classes)}",
    )
