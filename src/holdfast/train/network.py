"""The network that is trained: built by name, or a module of the caller's. Open this file to change what is refused
before training starts."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from copy import deepcopy

import torch
from torch import Tensor, nn

from holdfast.augment.basic import to_float
from holdfast.data import Dataset
from holdfast.devices import autocast
from holdfast.errors import HoldfastError, require
from holdfast.models import BuiltModel, build_model
from holdfast.module_state import evaluating
from holdfast.settings import TrainSettings
from holdfast.train.progress import Progress


def model_factory(
    settings: TrainSettings, data: Dataset, mean: Sequence[float], std: Sequence[float], progress: Progress
) -> Callable[[], BuiltModel]:
    """A function that makes the network and, for methods that need one, an auxiliary network like it."""
    channels, height, width = data.shape
    said: set[str] = set()

    def make() -> BuiltModel:
        built = build_model(
            settings.model.name,
            num_classes=data.num_classes,
            in_channels=channels,
            image_size=(height, width),
            mean=mean,
            std=std,
            pretrained=settings.model.pretrained,
            weights=settings.model.weights,
        )
        for note in built.notes:
            if note not in said:
                progress.note(note)
                said.add(note)
        return built

    return make


def copier(model: nn.Module, progress: Progress) -> Callable[[], nn.Module]:
    """A function that makes an auxiliary network like a module of the caller's, which nobody else can build: a copy."""
    name = type(model).__name__

    def make() -> nn.Module:
        try:
            made = deepcopy(model)
        except Exception as error:  # whatever the caller's parts raise
            raise HoldfastError(
                f"this method needs a second network, and this {name} cannot be copied: {error}; fix that, or use a "
                "method without one, such as erm"
            ) from error
        progress.note(f"the auxiliary network is a copy of this {name}, with the weights that it came with")
        return made

    return make


def _tensor_in(outputs: object) -> str | None:
    """The part of a model's outputs that is probably meant, where they have parts."""
    return next((name for name in ("logits", "out") if isinstance(getattr(outputs, name, None), Tensor)), None)


def check_module(model: nn.Module, data: Dataset, device: torch.device, *, precision: str) -> None:
    """Bring a module of the caller's to the device, and refuse one that does not give logits of the data's classes."""
    images = to_float(data.train.read(torch.arange(min(2, len(data.train)))).to(device))
    try:
        with torch.no_grad(), evaluating(model.to(device)), autocast(precision, device):
            outputs = model(images)
    except RuntimeError as error:
        raise HoldfastError(
            f"this {type(model).__name__} cannot take images of shape {data.shape} (C, H, W): {error}; give a model "
            "that does, or other images with image_size"
        ) from error
    got = tuple(outputs.shape) if isinstance(outputs, Tensor) else type(outputs).__name__
    require(
        got == (len(images), data.num_classes),
        f"this {type(model).__name__} must give logits of shape {(len(images), data.num_classes)} for {len(images)} "
        f"images of {data.num_classes} classes, and gives {got}; "
        + (f"wrap it so that it returns .{inner}" if (inner := _tensor_in(outputs)) else "change its last layer"),
    )
    require(
        any(p.requires_grad for p in model.parameters()),
        f"this {type(model).__name__} has no parameter to train; let some require a gradient",
    )
