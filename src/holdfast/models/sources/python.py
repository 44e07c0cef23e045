"""``python:package.module:function``: your own code, run in this process."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Mapping
from copy import deepcopy
from dataclasses import replace
from difflib import get_close_matches
from importlib import import_module
from inspect import Parameter, signature
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any, Final

from holdfast.errors import HoldfastError, first_line, require, unknown
from holdfast.models.source_types import ModelSource, OpenRequest, Sides, SourceModel
from holdfast.models.sources.module import Modules, stated_by
from holdfast.parts import source

if TYPE_CHECKING:
    from torch import nn

SHAPE = "write python:package.module:function, such as python:my_models:make"


@source(
    "python",
    about="What a function of yours returns: a torch module, or a callable from images to logits.",
    syntax="python:package.module:function",
    prefix="python:",
    order=40,
)
class PythonFunctions(ModelSource):
    def has(self, name: str) -> bool:
        """A function that does not exist is refused, with those that do, as it is called."""
        return bool(name)

    def build(
        self, name: str, *, num_classes: int, channels: int, image_size: Sides | None, pretrained: bool
    ) -> SourceModel:
        """What the function makes, called with num_classes where it takes that: a network to train."""
        remedy = "its function decides what it starts from; leave pretrained out"
        require(not pretrained, f"python:{name} has no published weights: {remedy}")
        made, file = self._made(name, num_classes=num_classes, channels=channels)
        return SourceModel(made, stated_by(made), notes=(f"python:{name} ran code of yours, from {file}",))

    def open(self, name: str, request: OpenRequest) -> SourceModel:
        """Call the function and read what its model states about itself."""
        from torch import nn

        made, file = self._made(name)
        notes = [f"python:{name} ran code of yours, from {file}"]
        if not isinstance(made, nn.Module):
            kind, function = type(made).__name__, name.rpartition(":")[2]
            notes.append(f"{function} returned a {kind}, not a torch module: it stays on the device it is on")
        return replace(Modules().open(made, request), notes=tuple(notes))

    @staticmethod
    def _made(name: str, **known: int) -> tuple[Any, str]:
        """What the function returns, and the file it is in."""
        module_name, colon, function = name.rpartition(":")
        require(bool(colon and module_name and function), f"python:{name} names no function; {SHAPE}")
        remedy = f"give the module's name and start in its folder: python:{Path(module_name).stem}:{function}"
        require(not module_name.endswith(".py") and "/" not in module_name, f"python:{name} is a path; {remedy}")
        here = os.getcwd()
        sys.path.insert(0, here)
        try:
            made = call(load(module_name), function, f"python:{name}", **known)
        finally:
            sys.path.remove(here)
        return made, getattr(sys.modules[module_name], "__file__", None) or module_name


CLASS_WORDS: Final = ("num_classes", "n_classes", "classes")
CHANNEL_WORDS: Final = ("in_channels", "in_chans", "channels")
"""What a function calls the number of classes, and of channels of an image."""


def make_module(make: Callable[..., Any], *, num_classes: int, channels: int, name: str = "") -> nn.Module:
    """A network from a class or function of the user's: given the numbers of classes and channels where it takes them
    by these names, and nothing else. A module is copied: whoever asks for two wants two."""
    from torch import nn

    name = name or maker_name(make)
    if isinstance(make, nn.Module):
        return deepcopy(make)
    try:
        takes: Mapping[str, Parameter] = signature(make).parameters
    except (TypeError, ValueError):  # some builtins have none
        takes = {}
    given = {word: num_classes for word in CLASS_WORDS if word in takes} or _rest(takes, num_classes)
    given |= {word: channels for word in CHANNEL_WORDS if word in takes}
    try:
        made = make(**given)
    except Exception as error:  # the user's code may fail in any way
        shown = ", ".join(f"{key}={value}" for key, value in given.items())
        why = f"{name}({shown}) failed: {type(error).__name__}: {first_line(error)}"
        remedy = "it must make a torch module from num_classes and in_channels, or from nothing"
        raise HoldfastError(f"{why}; {remedy}") from error
    wanted = "it must return a torch module"
    require(isinstance(made, nn.Module), f"{name} returned a {type(made).__name__}; {wanted}")
    return made  # type: ignore[no-any-return]


def _rest(takes: Mapping[str, Parameter], num_classes: int) -> dict[str, int]:
    """Functions such as torchvision's pass num_classes on among keywords that they do not name."""
    passes_on = any(own.kind is Parameter.VAR_KEYWORD for own in takes.values())
    return {CLASS_WORDS[0]: num_classes} if passes_on else {}


def maker_name(make: Any) -> str:
    """What a module, or a class or function that makes one, is called."""
    own = getattr(make, "func", make)  # of functools.partial
    return str(getattr(own, "__name__", type(own).__name__))


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


def call(module: ModuleType, name: str, spec: str, **known: int) -> Callable[..., Any]:
    """What the function returns: a torch module or another callable; a module that is there already is taken itself.

    known: num_classes and channels, where a network is to be trained or filled with weights.
    """
    from torch import nn

    function = getattr(module, name, None)
    if function is None:
        public = [key for key, value in vars(module).items() if callable(value) and not key.startswith("_")]
        raise unknown(f"function of {module.__name__}", name, public)
    require(callable(function), f"{spec} is a {type(function).__name__}, not a function; {SHAPE}")
    if known:
        return make_module(function, name=spec, **known)
    try:
        made = function if isinstance(function, nn.Module) else function()
    except Exception as error:  # the user's code may fail in any way
        why = f"{spec} failed: {type(error).__name__}: {first_line(error)}"
        raise HoldfastError(f"{why}; the function must take nothing and return a model") from error
    wanted = "a torch module, or a callable from images to logits"
    require(callable(made), f"{spec} returned a {type(made).__name__}; it must return {wanted}")
    return made
