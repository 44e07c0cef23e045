"""Mappings (YAML, recipes, keyword arguments) to frozen settings and back, with errors that help."""

from __future__ import annotations

import types
import typing
from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from typing import Any, TypeVar

from holdfast.errors import HoldfastError, unknown

T = TypeVar("T")

LISTED_BY = "holdfast train --print-config"
"""What shows every setting by its name."""


def build(
    settings: type[T], values: Mapping[str, Any], *, base: T | None = None, where: str = "settings", group: str = "name"
) -> T:
    """Settings of the given type from flat values; what is not named comes from ``base`` or the defaults.

    group: what people call the field ``name``, which for them is the group's own name ("data: digits").

    >>> from holdfast.settings.training import TrainSettings
    >>> build(TrainSettings, {"optimizer": "adam", "lr": "1e-3"}).optimizer.lr
    0.001
    >>> build(TrainSettings, {"epoch": 3})
    Traceback (most recent call last):
    holdfast.errors.HoldfastError: unknown settings key 'epoch'; did you mean 'epochs'?
    """
    hints = typing.get_type_hints(settings)
    leaves = _leaves(settings)
    for key in values:
        if key not in leaves:
            raise unknown(f"{where} key", key, leaves, listed_by=LISTED_BY)
    made: dict[str, Any] = {}
    for f in fields(settings):  # type: ignore[arg-type]
        kind = hints[f.name]
        if (choose := _chooser(kind)) is not None:
            if f.name in values:
                made[f.name] = choose(values[f.name])
        elif is_dataclass(kind):
            own = {inner: values[outer] for outer, (group, inner) in leaves.items()
                   if group == f.name and outer in values}  # fmt: skip
            old = getattr(base, f.name) if base is not None else None
            made[f.name] = build(kind, own, base=old, where=where, group=f.name)  # type: ignore[arg-type]
        elif f.name in values:
            made[f.name] = convert(values[f.name], kind, group if f.name == "name" else f.name)
        if f.name not in made and base is not None:
            made[f.name] = getattr(base, f.name)
    return settings(**made)


def flatten(settings: Any) -> dict[str, Any]:
    """Settings as plain flat values, such that ``build(type(settings), flatten(settings)) == settings``."""
    flat: dict[str, Any] = {}
    for f in fields(settings):
        value = getattr(settings, f.name)
        if not is_dataclass(value):
            flat[f.name] = list(value) if isinstance(value, tuple) else value
        elif _chooser(type(value)) is not None:
            own = flatten(value)
            name: str = getattr(value, "name")  # noqa: B009  (a class variable the dataclass type does not show)
            flat[f.name] = {"name": name, **own} if own else name
        else:
            flat |= {f.name if name == "name" else name: v for name, v in flatten(value).items()}
    return flat


def convert(value: Any, kind: Any, name: str) -> Any:
    """A plain value as the annotated type, or an error that names both.

    >>> convert("1e-3", float, "lr"), convert([1, 2], tuple[int, ...], "milestones")
    (0.001, (1, 2))
    >>> convert(2.5, int, "epochs")
    Traceback (most recent call last):
    holdfast.errors.HoldfastError: epochs must be a whole number, got 2.5
    """
    origin, args = typing.get_origin(kind), typing.get_args(kind)
    if origin in (typing.Union, types.UnionType):
        if value is None and type(None) in args:
            return None
        return convert(value, next(a for a in args if a is not type(None)), name)
    if origin is typing.Literal:
        if value not in args:
            raise unknown(name, value, args)
        return value
    if origin is tuple:
        if not isinstance(value, (list, tuple)):
            raise HoldfastError(f"{name} must be a list, got {value!r}")
        kinds = [args[0]] * len(value) if args[-1] is Ellipsis else list(args)
        if len(kinds) != len(value):
            raise HoldfastError(f"{name} must have {len(kinds)} values, got {value!r}")
        return tuple(convert(v, k, name) for v, k in zip(value, kinds, strict=True))
    if origin is dict:
        if not isinstance(value, Mapping):
            raise HoldfastError(f"{name} must be a mapping such as {{NAME: VALUE}}, got {value!r}")
        return {convert(k, args[0], name): convert(v, args[1], f"{name}.{k}") for k, v in value.items()}
    words = {int: "a whole number", float: "a number", bool: "true or false", str: "text"}
    fits = {
        int: isinstance(value, int) and not isinstance(value, bool),
        bool: isinstance(value, bool),
        str: isinstance(value, str),
    }
    if kind is float and not isinstance(value, bool):
        try:  # YAML reads 1e-3 as text
            return float(value)
        except (TypeError, ValueError):
            pass
    elif fits.get(kind, False):
        return value
    raise HoldfastError(f"{name} must be {words[kind]}, got {value!r}")


def _leaves(settings: Any) -> dict[str, tuple[str, str]]:
    """Flat key -> (group field or "", field inside it)."""
    hints = typing.get_type_hints(settings)
    leaves: dict[str, tuple[str, str]] = {}
    for f in fields(settings):
        kind = hints[f.name]
        if is_dataclass(kind) and _chooser(kind) is None:
            for inner in fields(kind):
                leaves[f.name if inner.name == "name" else inner.name] = (f.name, inner.name)
        else:
            leaves[f.name] = ("", f.name)
    return leaves


def _chooser(kind: Any) -> Any:
    """The function that picks among registered settings, for a field that holds one of several classes."""
    return getattr(kind, "choose", None) if isinstance(kind, type) else None
