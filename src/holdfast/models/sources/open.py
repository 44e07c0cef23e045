"""Open any model: find it, put what its images need before it, try it out."""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from typing import Any, Final

import torch
from torch import nn

from holdfast.errors import require
from holdfast.models.sources.asked import Asked
from holdfast.models.sources.called import in_its_own_precision
from holdfast.models.sources.opened import Found, Opened
from holdfast.models.sources.prepared import Prepared, uncropped
from holdfast.models.sources.preprocessing import NONE, Preprocessing
from holdfast.models.sources.probe import probe_gradients, sample_images, try_out
from holdfast.models.sources.python import read_made
from holdfast.models.sources.spec import kind_of

SOURCES: Final = ("run", "timm", "torchvision", "weights", "python", "torchscript", "exported", "onnx")
"""Kinds of source; each is a file of that name here, whose ``find`` hands a network over."""


def open_model(
    spec: str,
    *,
    shape: tuple[int, int, int],
    device: torch.device | str = "cpu",
    model: str | None = None,
    num_classes: int | None = None,
    pretrained: bool = True,
    preprocessing: Preprocessing | None = None,
    image_size: tuple[int, int] | None = None,
) -> Opened:
    """The model a specification names, ready for images (B, C, H, W) in [0, 1] of the data's shape (C, H, W).

    spec: a run folder; ``timm:NAME``, ``hf-hub:OWNER/NAME``, ``torchvision:NAME[:WEIGHTS]``; a .safetensors or .pth
    file with ``model``; ``python:package.module:function`` (runs that code); a .torchscript, .pt2 or .onnx file.
    model: the architecture of a weight file, as ``build_model`` takes it. num_classes: of the data, where a file does
    not show its own. pretrained: without it, published architectures come with random weights and a warning.
    preprocessing, image_size: what the user states; they win over the model's own settings.
    """
    kind, rest = kind_of(spec)
    asked = Asked(shape, torch.device(device), model, num_classes, pretrained, preprocessing, image_size)
    found: Found = import_module(f"holdfast.models.sources.{kind}").find(rest, asked)
    return _tried(found, spec, kind, asked)


def open_module(
    module: Callable[..., Any],
    *,
    shape: tuple[int, int, int],
    device: torch.device | str = "cpu",
    name: str = "model",
    preprocessing: Preprocessing | None = None,
    image_size: tuple[int, int] | None = None,
) -> Opened:
    """The same for a module (or any callable from images to outputs) that is already there.

    It may state ``classes``, ``mean`` and ``std`` (plain numbers), ``input_size`` as attributes.
    """
    asked = Asked(shape, torch.device(device), preprocessing=preprocessing, image_size=image_size)
    return _tried(read_made(module, asked), name, "module", asked)


def prepared_module(module: nn.Module, shape: tuple[int, int, int], device: torch.device) -> Prepared:
    """A module on the device as it is, for images of that shape in [0, 1], tried out; nothing it states is read."""
    require(
        isinstance(module, nn.Module),
        f"the model must be a torch module, got {type(module).__name__}; 'holdfast audit' opens models by name",
    )
    net, _ = in_its_own_precision(module.to(device))
    prepared = Prepared(net, NONE, channels=shape[0], size=None).to(device)
    try_out(prepared, sample_images(shape, device), type(module).__name__)
    return prepared


def _tried(found: Found, spec: str, kind: str, asked: Asked) -> Opened:
    """What images need put before the network, and both tried out together."""
    shape, where = asked.shape, asked.device
    stated = asked.preprocessing or found.preprocessing
    size = asked.image_size or found.size
    channels = found.channels or shape[0]
    crop = 1.0 if asked.image_size else found.crop
    net, cast = in_its_own_precision(found.net)
    prepared = Prepared(net, stated or NONE, channels=channels, size=size, crop=crop).to(where)
    images = sample_images(shape, where)
    notes = [*found.notes, *cast, *fitting_notes(spec, shape, channels, size, crop)]
    notes += try_out(prepared, images, spec)
    no_gradients = probe_gradients(prepared, images)
    if no_gradients:
        notes.append(f"no gradients reach the images: {no_gradients}")
    return Opened(
        spec,
        kind,
        prepared,
        stated,
        found.classes,
        found.aliases,
        size,
        None if size is None else uncropped(size, crop),
        channels,
        no_gradients is None,
        no_gradients,
        found.hash,
        tuple(notes),
        found.warnings,
    )


def fitting_notes(
    spec: str, shape: tuple[int, int, int], channels: int, size: tuple[int, int] | None, crop: float = 1.0
) -> tuple[str, ...]:
    """What is done to the images so that the network can take them.

    >>> fitting_notes("m", (1, 8, 8), 3, (32, 32))
    ('m takes colour: it sees grey images three times over', 'images are resized from 8x8 to 32x32 for m')
    """
    notes = []
    if shape[0] == 1 and channels == 3:
        notes.append(f"{spec} takes colour: it sees grey images three times over")
    elif shape[0] == 3 and channels == 1:
        notes.append(f"{spec} takes grey: colour images are turned to their luminance for it")
    if size is not None and size != shape[1:]:
        done = "cut at the centre" if uncropped(size, crop) == shape[1:] else "resized"
        notes.append(f"images are {done} from {shape[1]}x{shape[2]} to {size[0]}x{size[1]} for {spec}")
    return tuple(notes)
