"""Which source a model's name belongs to."""

from __future__ import annotations

from importlib import import_module
from typing import Any

from holdfast.errors import unknown
from holdfast.models import own

LIBRARIES = {"timm": "holdfast.models.from_timm", "torchvision": "holdfast.models.from_torchvision"}
"""In the order in which a bare name is looked up, after holdfast's own."""


def model_names() -> dict[str, list[str]]:
    """Every known name by source: holdfast's own, timm's, torchvision's."""
    return {"holdfast": own.names()} | {library: source(library).names() for library in LIBRARIES}


def resolve(name: str) -> tuple[str, str]:
    """(source, name there) of a model.

    >>> resolve("convnet"), resolve("resnet18"), resolve("torchvision:resnet18")
    (('holdfast', 'convnet'), ('timm', 'resnet18'), ('torchvision', 'resnet18'))
    >>> resolve("cifar-resnet")
    Traceback (most recent call last):
    holdfast.errors.HoldfastError: unknown model 'cifar-resnet'; did you mean 'cifar-resnet18' or ...
    """
    if name in own.names():
        return "holdfast", name
    library, colon, inner = name.partition(":")
    if colon and library in LIBRARIES:
        if not source(library).has(inner):
            raise unknown("model", name, [f"{library}:{known}" for known in source(library).names()])
        return library, inner
    for library in LIBRARIES:
        if source(library).has(name):
            return library, name
    every = dict.fromkeys(known for names in model_names().values() for known in names)
    raise unknown("model", name, every, listed_by="holdfast list models")


def source(name: str) -> Any:
    """The module that makes a source's networks; imported late, since timm takes seconds."""
    return own if name == "holdfast" else import_module(LIBRARIES[name])
