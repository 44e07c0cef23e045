"""``python:package.module:function``: the user's own code, run in this process."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Sequence
from difflib import get_close_matches
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any

from torch import nn

from holdfast.errors import HoldfastError, require, unknown
from holdfast.models.raw import both_sides, reason
from holdfast.models.sources.asked import Asked
from holdfast.models.sources.called import Called
from holdfast.models.sources.hashing import hash_tensors
from holdfast.models.sources.opened import Found
from holdfast.models.sources.preprocessing import Preprocessing, stated
from holdfast.models.sources.timm import class_names, input_size, settings_of

SHAPE = "write python:package.module:function, such as python:my_models:make"


def find(spec: str, asked: Asked) -> Found:
    """Call the function, which takes nothing, and read what its model states about itself.

    A model may carry ``classes``, ``mean`` and ``std``, ``input_size``; timm's networks carry theirs in settings.
    """
    module_name, colon, name = spec.rpartition(":")
    require(bool(colon and module_name and name), f"python:{spec} names no function; {SHAPE}")
    made = call(load(module_name), name, f"python:{spec}")
    net = made.eval().to(asked.device) if isinstance(made, nn.Module) else Called(made)
    settings = settings_of(made)
    classes, aliases = class_names(settings)
    own: Sequence[Any] | None = getattr(made, "classes", None)
    size = getattr(made, "input_size", None)
    convolution = next((m for m in net.modules() if isinstance(m, nn.Conv2d)), None)
    notes = [f"python:{spec} ran code of yours, from {where(module_name)}"]
    if not isinstance(made, nn.Module):
        notes.append(f"{name} returned a {type(made).__name__}, not a torch module: it stays on the device it is on")
    return Found(
        net,
        stated_by(made) or stated(settings.get("mean"), settings.get("std")),
        classes=tuple(map(str, own)) if isinstance(own, Sequence) and not isinstance(own, str) else classes,
        aliases=() if isinstance(own, Sequence) else aliases,
        size=input_size(settings) if size is None else both_sides(tuple(size)[-2:] if _several(size) else int(size)),
        channels=None if convolution is None else convolution.in_channels,
        hash=hash_tensors(net.state_dict()),
        notes=tuple(notes),
    )


def load(name: str) -> ModuleType:
    """Import a module, looked for in the working folder first."""
    here = os.getcwd()
    sys.path.insert(0, here)
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


def stated_by(made: Any) -> Preprocessing | None:
    """``mean`` and ``std`` as plain numbers on the model. Tensors are not read: they are layers' own business."""
    mean, std = getattr(made, "mean", None), getattr(made, "std", None)
    plain = all(isinstance(v, list | tuple) and all(isinstance(n, int | float) for n in v) for v in (mean, std))
    return stated(mean, std) if plain else None


def where(name: str) -> str:
    return str(getattr(sys.modules[name], "__file__", None) or name)


def _several(size: Any) -> bool:
    return isinstance(size, Sequence)
