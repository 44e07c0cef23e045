"""``python:package.module:function``: the user's own code, run in this process."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from difflib import get_close_matches
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any

from torch import nn

from holdfast.errors import HoldfastError, require, unknown
from holdfast.models.architecture import both_sides, reason
from holdfast.models.sources.asked import Asked
from holdfast.models.sources.called import Called
from holdfast.models.sources.hashing import hash_tensors
from holdfast.models.sources.opened import Found
from holdfast.models.sources.preprocessing import Preprocessing, stated
from holdfast.models.sources.timm import class_names, input_size, settings_of

SHAPE = "write python:package.module:function, such as python:my_models:make"


def find(spec: str, asked: Asked) -> Found:
    """Call the function, which takes nothing, and read what its model states about itself."""
    module_name, colon, name = spec.rpartition(":")
    require(bool(colon and module_name and name), f"python:{spec} names no function; {SHAPE}")
    require(
        not module_name.endswith(".py") and "/" not in module_name,
        f"python:{spec} is a path; give the module's name and start in its folder: "
        f"python:{Path(module_name).stem}:{name}",
    )
    with working_folder_importable():
        made = call(load(module_name), name, f"python:{spec}")
    notes = [f"python:{spec} ran code of yours, from {where(module_name)}"]
    if not isinstance(made, nn.Module):
        notes.append(f"{name} returned a {type(made).__name__}, not a torch module: it stays on the device it is on")
    return replace(read_made(made, asked), notes=tuple(notes))


def read_made(made: Callable[..., Any], asked: Asked) -> Found:
    """A module or another callable, in evaluation mode, with what it states about itself.

    It may carry ``classes`` (or transformers' ``config.id2label``), ``mean`` and ``std``, ``input_size``; timm's
    networks carry theirs in settings.
    """
    net = made.eval().to(asked.device) if isinstance(made, nn.Module) else Called(made)
    settings = settings_of(made)
    classes, aliases = class_names(settings)
    if own := own_classes(made):
        classes, aliases = own, ()
    size = getattr(made, "input_size", None)
    convolution = next((m for m in net.modules() if isinstance(m, nn.Conv2d)), None)
    return Found(
        net,
        stated_by(made) or stated(settings.get("mean"), settings.get("std")),
        classes=classes,
        aliases=aliases,
        size=_size(size) if isinstance(size, int | list | tuple) else input_size(settings),
        channels=None if convolution is None else convolution.in_channels,
        hash=hash_tensors(net.state_dict()),
    )


def load(name: str) -> ModuleType:
    """Import a module, looked for in the working folder first."""
    here = os.getcwd()
    try:
        return import_module(name)
    except ModuleNotFoundError as error:
        if error.name is None or not f"{name}.".startswith(f"{error.name}."):
            raise HoldfastError(f"{name} needs the package {error.name!r}, which is not installed") from error
        close = get_close_matches(name.split(".")[0], [p.stem for p in Path(here).glob("*.py")], n=1)
        hint = f"did you mean {close[0]!r}?" if close else f"it is looked for in {here} and among installed packages"
        raise HoldfastError(f"no Python module {name!r}; {hint}") from error
    except Exception as error:  # the user's code may fail in any way
        raise HoldfastError(f"importing {name} failed: {type(error).__name__}: {reason(error)}") from error


@contextmanager
def working_folder_importable() -> Iterator[None]:
    here = os.getcwd()
    sys.path.insert(0, here)
    try:
        yield
    finally:
        sys.path.remove(here)


def call(module: ModuleType, name: str, spec: str) -> Callable[..., Any]:
    """What the function returns: a torch module or another callable."""
    function = getattr(module, name, None)
    if function is None:
        public = [key for key, value in vars(module).items() if callable(value) and not key.startswith("_")]
        raise unknown(f"function of {module.__name__}", name, public)
    require(callable(function), f"{spec} is a {type(function).__name__}, not a function; {SHAPE}")
    try:
        made = function()
    except Exception as error:  # the user's code may fail in any way
        raise HoldfastError(
            f"{spec} failed: {type(error).__name__}: {reason(error)}; the function must take nothing and return a model"
        ) from error
    require(
        callable(made),
        f"{spec} returned a {type(made).__name__}; it must return a torch module, or a callable from images to logits",
    )
    return made  # type: ignore[no-any-return]


def own_classes(made: Any) -> tuple[str, ...] | None:
    """``classes`` on the model, or ``config.id2label`` as transformers keeps them."""
    own = getattr(made, "classes", None)
    if isinstance(own, list | tuple):
        return tuple(map(str, own))
    labels = getattr(getattr(made, "config", None), "id2label", None)
    if isinstance(labels, Mapping) and sorted(map(int, labels)) == list(range(len(labels))):
        return tuple(str(name) for _, name in sorted((int(i), name) for i, name in labels.items()))
    return None


def stated_by(made: Any) -> Preprocessing | None:
    """``mean`` and ``std`` as plain numbers on the model. Tensors are not read: they are layers' own business."""
    mean, std = getattr(made, "mean", None), getattr(made, "std", None)
    plain = all(isinstance(v, list | tuple) and all(isinstance(n, int | float) for n in v) for v in (mean, std))
    return stated(mean, std) if plain else None


def where(name: str) -> str:
    return str(getattr(sys.modules[name], "__file__", None) or name)


def _size(size: int | Sequence[int]) -> tuple[int, int]:
    """(height, width) from a side, (height, width) or (channels, height, width)."""
    return both_sides(size) if isinstance(size, int) else (int(size[-2]), int(size[-1]))
