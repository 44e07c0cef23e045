"""An ``nn.Module`` or another callable that is already in memory, with what it states about itself."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from inspect import isfunction, signature
from typing import Any

from holdfast.errors import explaining, require
from holdfast.models.source_types import ModelSource, OpenRequest, Preprocessing, Sides, SourceModel, both_sides
from holdfast.models.sources.timm import class_names, input_size, settings_of
from holdfast.parts import source


@source("module", about="An nn.Module, or any callable from images to outputs; in Python only.", order=90)
class Modules(ModelSource):
    def open(self, made: Callable[..., Any], request: OpenRequest) -> SourceModel:
        """A module or another callable, in evaluation mode.

        It may carry ``classes`` (or transformers' ``config.id2label``), ``mean`` and ``std``, ``input_size``; timm's
        networks carry theirs in settings.
        """
        from torch import nn

        from holdfast.models.adapters import CallableModule

        net = made.eval().to(request.device) if isinstance(made, nn.Module) else CallableModule(made)
        settings = settings_of(made)
        classes, aliases = class_names(settings)
        own = own_classes(made)
        if own is not None:
            classes, aliases = own, ()
        size = getattr(made, "input_size", None)
        convolution = next((m for m in net.modules() if isinstance(m, nn.Conv2d)), None)
        return SourceModel(
            net,
            stated_by(made) or Preprocessing.stated(settings.get("mean"), settings.get("std")),
            classes=classes,
            aliases=aliases,
            size=_size(size) if isinstance(size, int | list | tuple) else input_size(settings),
            channels=None if convolution is None else convolution.in_channels,
            published=own is None and classes is not None,
        )


def made_by(given: Any) -> Any:
    """What a class of modules, or a function without arguments, makes; anything else itself."""
    from torch import nn

    if isinstance(given, nn.Module | str) or not (isinstance(given, type) or isfunction(getattr(given, "func", given))):
        return given
    needed = [own for own in signature(given).parameters.values() if own.default is own.empty]
    if isinstance(given, type):
        remedy = "give a module of it"
        require(issubclass(given, nn.Module), f"model must be a torch module, got the class {given.__name__}; {remedy}")
    elif any(own.kind is not own.VAR_KEYWORD for own in needed):
        return given  # it takes images
    with explaining(f"{given!r} makes no model", "give the module itself"):
        return given()


def own_classes(made: Any) -> tuple[str, ...] | None:
    """``classes`` on the model, or ``config.id2label`` as transformers keeps them."""
    own = getattr(made, "classes", None)
    if isinstance(own, list | tuple):
        return tuple(map(str, own))
    labels = getattr(getattr(made, "config", None), "id2label", None)
    if isinstance(labels, Mapping) and sorted(map(int, labels)) == list(range(len(labels))):
        names = tuple(str(name) for _, name in sorted((int(i), name) for i, name in labels.items()))
        # what transformers fills in where nobody named the classes
        return None if names == tuple(f"LABEL_{i}" for i in range(len(names))) else names
    return None


def stated_by(made: Any) -> Preprocessing | None:
    """``mean`` and ``std`` as plain numbers on the model. Tensors are not read: they belong to layers."""

    mean, std = getattr(made, "mean", None), getattr(made, "std", None)
    plain = all(isinstance(v, list | tuple) and all(isinstance(n, int | float) for n in v) for v in (mean, std))
    return Preprocessing.stated(mean, std) if plain else None


def _size(size: int | Sequence[int]) -> Sides:
    """(height, width) from a side, (height, width) or (channels, height, width)."""
    return both_sides(size) if isinstance(size, int) else (int(size[-2]), int(size[-1]))
