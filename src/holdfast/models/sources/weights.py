"""A weight file with the architecture it belongs to; the head is the file's own, never a fresh one."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from timm.models import get_pretrained_cfg
from torch import Tensor

from holdfast.errors import HoldfastError, require
from holdfast.models.build import build_model
from holdfast.models.from_torchvision import INPUT_SIZE
from holdfast.models.heads import find_heads
from holdfast.models.names import resolve
from holdfast.models.normalise import numbers
from holdfast.models.sources.asked import Asked
from holdfast.models.sources.hashing import hash_tensors
from holdfast.models.sources.opened import Found
from holdfast.models.sources.preprocessing import IMAGENET, Preprocessing, stated
from holdfast.models.sources.spec import one_source
from holdfast.models.weight_files import read_tensors
from holdfast.models.weights import find_prefix, load_tensors

WHOLE = (
    "{} holds more than tensors, a whole pickled model perhaps, or is damaged; unpickling it could run foreign code. "
    "If you trust it, write a function that loads and returns it, and give python:module:function; "
    "or save its tensors alone: torch.save(model.state_dict(), 'weights.pth')"
)


def find(path: str, asked: Asked) -> Found:
    tensors = read(path)
    require(
        asked.model is not None,
        f"{path} holds weights alone; name the architecture they belong to with --model, such as --model timm:resnet18",
    )
    assert asked.model is not None
    name = one_source(asked.model)
    classes = head_size(name, tensors) or asked.num_classes
    require(classes is not None, f"{path} does not show how many classes it has; state num_classes")
    assert classes is not None
    assumed = asked.preprocessing or library_settings(name)
    channels = 3 if _takes_colour(tensors) else asked.shape[0]
    known = (assumed or Preprocessing()).for_channels(channels)
    with torch.random.fork_rng(devices=[]):
        model = build_model(
            name,
            num_classes=classes,
            in_channels=channels,
            image_size=asked.image_size,
            mean=known.mean,
            std=known.std,
        ).model
    notes = load_tensors(model, tensors, origin=path)
    fresh = [note for note in notes if note.startswith("head ")]
    require(not fresh, f"{path} lacks the classifier of {name} ({'; '.join(fresh)}); its answers would mean nothing")
    inside = any(note.startswith("normalisation from the weights") for note in notes)
    own = Preprocessing(numbers(model.mean), numbers(model.std))
    return Found(
        model.net.eval().to(asked.device),
        own if inside else assumed,
        size=fixed_size(name),
        channels=channels,
        hash=hash_tensors(model.state_dict()),
        notes=notes,
    )


def read(path: str) -> dict[str, Tensor]:
    """The tensors of a file; a whole pickled model is refused with the way round."""
    try:
        return read_tensors(path)
    except HoldfastError as error:
        if "more than tensors" in str(error):
            raise HoldfastError(WHOLE.format(path)) from error
        raise


def head_size(name: str, tensors: Mapping[str, Tensor]) -> int | None:
    """How many classes the file's own classifier has; None where it is not found under its name."""
    with torch.random.fork_rng(devices=[]):
        net = build_model(name, num_classes=2, in_channels=3 if _takes_colour(tensors) else 1).model.net
    prefix = find_prefix(tensors, net.state_dict())
    found = [tensors.get(f"{prefix}{head}.weight") for head, _ in find_heads(net)]
    return next((len(value) for value in found if value is not None), None)


def library_settings(name: str) -> Preprocessing | None:
    """What the library of an architecture normalises with; None for holdfast's own, whose files say it themselves."""
    library, inner = resolve(name)
    if library == "torchvision":
        return IMAGENET
    if library == "timm":
        settings = get_pretrained_cfg(inner, allow_unregistered=True)
        return None if settings is None else stated(settings.mean, settings.std)
    return None


def fixed_size(name: str) -> tuple[int, int] | None:
    """The size an architecture is built for where it takes no other; None for those that take any."""
    library, inner = resolve(name)
    if library == "torchvision":
        return (224, 224) if inner.split("_")[0] in INPUT_SIZE else None
    if library == "timm":
        settings = get_pretrained_cfg(inner, allow_unregistered=True)
        if settings is not None and settings.fixed_input_size:
            return int(settings.input_size[1]), int(settings.input_size[2])
    return None


def _takes_colour(tensors: Mapping[str, Tensor]) -> bool:
    """Whether the first layer takes three channels; deeper ones take more, depthwise ones take one."""
    return any(value.ndim == 4 and value.shape[1] == 3 for value in tensors.values())
