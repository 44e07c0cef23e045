"""``python:package.module:function``: your own code, run in this process."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from dataclasses import replace
from difflib import get_close_matches
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any

from holdfast.errors import HoldfastError, first_line, require, unknown
from holdfast.models.source_types import ModelSource, OpenRequest, SourceModel
from holdfast.models.sources.module import Modules
from holdfast.parts import source

SHAPE = "write python:package.module:function, such as python:my_models:make"


@source(
    "python",
    about="What a function of yours returns: a torch module, or a callable from images to logits.",
    syntax="python:package.module:function",
    prefix="python:",
    order=40,
)
class PythonFunctions(ModelSource):
    def open(self, name: str, request: OpenRequest) -> SourceModel:
        """Call the function, which takes nothing, and read what its model states about itself."""
        from torch import nn

        module_name, colon, function = name.rpartition(":")
        require(bool(colon and module_name and function), f"python:{name} names no function; {SHAPE}")
        remedy = f"give the module's name and start in its folder: python:{Path(module_name).stem}:{function}"
        require(not module_name.endswith(".py") and "/" not in module_name, f"python:{name} is a path; {remedy}")
        here = os.getcwd()
        sys.path.insert(0, here)
        try:
            made = call(load(module_name), function, f"python:{name}")
        finally:
            sys.path.remove(here)
        file = getattr(sys.modules[module_name], "__file__", None) or module_name
        notes = [f"python:{name} ran code of yours, from {file}"]
        if not isinstance(made, nn.Module):
            kind = type(made).__name__
            notes.append(f"{function} returned a {kind}, not a torch module: it stays on the device it is on")
        return replace(Modules().open(made, request), notes=tuple(notes))


def load(name: str) -> ModuleType:
    """Import a module, looked for in the working folder first."""
    try:
        return import_module(name)
    except ModuleNotFoundError as error:
        if error.name is None or not f"{name}.".startswith(f"{error.name}."):
            raise HoldfastError(f"{name} needs the package {error.name!r}, which is not installed") from error
        close = get_close_matches(name.split(".")[0], [p.stem for p in Path.cwd().glob("*.py")], n=1)
        elsewhere = f"it is looked for in {os.getcwd()} and among installed packages"
        hint = f"did you mean {close[0]!r}?" if close else elsewhere
        raise HoldfastError(f"no Python module {name!r}; {hint}") from error
    except Exception as error:  # the user's code may fail in any way
        raise HoldfastError(f"importing {name} failed: {type(error).__name__}: {first_line(error)}") from error


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
        why = f"{spec} failed: {type(error).__name__}: {first_line(error)}"
        raise HoldfastError(f"{why}; the function must take nothing and return a model") from error
    wanted = "a torch module, or a callable from images to logits"
    require(callable(made), f"{spec} returned a {type(made).__name__}; it must return {wanted}")
    return made  # type: ignore[no-any-return]
