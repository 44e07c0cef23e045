"""A model by name, ready to train: the network, a head for these classes, normalisation before it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from holdfast.errors import explaining, require
from holdfast.models.preprocessing import Normalised
from holdfast.models.resolution import resolve, source_of
from holdfast.models.source_types import NONE, Preprocessing, Sides, Size, both_sides
from holdfast.models.weights import load_tensors, read_tensors, takes_colour
from holdfast.module_state import evaluating


@dataclass(frozen=True, eq=False)
class BuiltModel:
    """A model, the full name it was found under, and what to tell the user about how it was made."""

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
    statistics: tuple[Sequence[float], Sequence[float]] | None = None,
    pretrained: bool = False,
    weights: str | Path | None = None,
) -> BuiltModel:
    """The model of that name for images (B, in_channels, H, W) in [0, 1].

    name: one of holdfast's own, ``timm:NAME``, ``torchvision:NAME``, a name of another package's source, or a bare name
    that is looked up in that order. image_size: a side, or (height, width); a model that cannot take it is refused here
    rather than in the first step. mean, std: one value per channel, in [0, 1]; weights that bring their own win. Three
    values for grey images make a colour network that sees the grey picture three times. statistics: mean and std of the
    data, which are used where nothing else says; a file of weights without any is taken to expect what the library's
    own weights do. pretrained: start from what the source publishes. weights: start from a file. Fresh layers draw from
    torch's global generator.

    >>> built = build_model("convnet", num_classes=10, in_channels=1, mean=[0.3], std=[0.2])
    >>> built.model(torch.rand(2, 1, 16, 16)).shape
    torch.Size([2, 10])
    """
    require(num_classes >= 1, f"num_classes must be >= 1, got {num_classes}")
    require(in_channels >= 1, f"in_channels must be >= 1, got {in_channels}")
    size = None if image_size is None else both_sides(image_size)
    require(size is None or min(size) >= 1, f"image_size must be >= 1, got {image_size}")
    require(not (pretrained and weights), f"pretrained and weights ({weights}) exclude each other; give one of them")
    part, inner = resolve(name)
    tensors = read_tensors(weights) if weights is not None else None
    given, measured = Preprocessing.stated(mean, std), Preprocessing.stated(*(statistics or (None, None)))
    three = any(found is not None and len(found.mean) == 3 for found in (given, measured))
    colour = pretrained or three or (tensors is not None and takes_colour(tensors))
    channels = 3 if in_channels == 1 and colour else in_channels
    raw = source_of(part).build(
        inner, num_classes=num_classes, channels=channels, image_size=size, pretrained=pretrained
    )
    channels = raw.channels or channels
    full, expected = f"{part.prefix}{inner}", source_of(part).expected_input(inner)[0] if tensors is not None else None
    used = (raw.preprocessing or given or expected or measured or NONE).for_channels(channels)
    model = Normalised(raw.net, used.mean, used.std)
    notes = list(raw.notes)
    if raw.preprocessing is not None:
        notes.append(f"normalisation from the weights: {model.extra_repr()}")
    if channels == 3 and in_channels == 1:
        notes.append(f"{full} takes colour: it sees grey images three times over")
    if tensors is not None:
        notes += load_tensors(model, tensors, origin=str(weights)).notes
    if size is not None:
        _try_out(model, full, num_classes, in_channels, size)
    return BuiltModel(model, full, tuple(notes))


def _try_out(model: Normalised, name: str, num_classes: int, in_channels: int, size: Sides) -> None:
    """Refuse a network that cannot take these images or does not give one logit per class."""
    refused = explaining(f"{name} cannot take {size[0]}x{size[1]} images", "change --image-size or --model")
    with refused, evaluating(model), torch.no_grad():
        logits = model(torch.zeros(1, in_channels, *size))
    got = tuple(logits.shape) if isinstance(logits, Tensor) else type(logits).__name__
    require(got == (1, num_classes), f"{name} is not an image classifier: it gives {got} instead of {(1, num_classes)}")
