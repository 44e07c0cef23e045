"""Networks from torchvision: image classifiers only."""

from __future__ import annotations

from typing import Any

import torchvision.models as zoo
from torch import nn

from holdfast.errors import HoldfastError, require
from holdfast.models.architecture import Raw, Size, both_sides, failure, head_note
from holdfast.models.heads import find_head, replace_head, width

INPUT_SIZE = {"vit": "image_size", "maxvit": "input_size"}
"""Families built for one image size, and what they call it."""


def names() -> list[str]:
    return list(zoo.list_models(module=zoo))


def has(name: str) -> bool:
    if name in names():
        return True
    if name in zoo.list_models():
        raise HoldfastError(
            f"torchvision:{name} is no plain image classifier: it detects, segments, takes video or is "
            "quantized; 'holdfast list models' shows the names that can be trained"
        )
    return False


def make(name: str, *, num_classes: int, channels: int, size: Size | None, pretrained: bool) -> Raw:
    require(
        channels in (1, 3),
        f"torchvision:{name} takes grey or colour images, got {channels} channels; use timm",
    )
    weights = zoo.get_model_weights(name).DEFAULT if pretrained else None
    try:
        net = zoo.get_model(name, weights=weights, **({} if pretrained else _options(name, num_classes, size)))
    except Exception as error:  # builders assert, and downloads fail, in many ways
        raise HoldfastError(failure(f"torchvision:{name}", size, pretrained, error)) from error
    if weights is None:
        return Raw(_plain(net), channels=3)
    mean, std = tuple(weights.transforms().mean), tuple(weights.transforms().std)
    if getattr(net, "transform_input", False):
        mean = std = (0.5, 0.5, 0.5)  # what transform_input turns the usual normalisation into
    notes = [f"weights: torchvision's {weights}"]
    theirs = width(find_head(net)[1])
    if theirs != num_classes:
        notes.append(head_note(replace_head(net, num_classes), theirs, num_classes))
    return Raw(_plain(net), 3, mean, std, tuple(notes))


def _options(name: str, num_classes: int, size: Size | None) -> dict[str, Any]:
    options: dict[str, Any] = {"num_classes": num_classes}
    if name in ("googlenet", "inception_v3"):
        options |= {"init_weights": True, "aux_logits": False}
    if size is not None and (word := INPUT_SIZE.get(name.split("_")[0])):
        options[word] = both_sides(size) if word == "input_size" else both_sides(size)[0]
    return options


def _plain(net: nn.Module) -> nn.Module:
    """Drop what changes the output with the mode, or the input by a flag that no state dict holds."""
    plain = {"aux1": None, "aux2": None, "AuxLogits": None, "aux_logits": False, "transform_input": False}
    for name, value in plain.items():
        if hasattr(net, name):
            setattr(net, name, value)
    return net
