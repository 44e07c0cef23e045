"""A setting that is one of several registered kinds, each with settings of its own."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from importlib import import_module
from typing import Any, ClassVar, Self

from holdfast.errors import HoldfastError, unknown
from holdfast.settings.loader import build


@dataclass(frozen=True)
class Choice:
    """Base of a family of settings. A family sets ``kind`` and ``known``; a member registers by its ``name``."""

    kind: ClassVar[str]
    known: ClassVar[dict[str, type[Self]]]
    name: ClassVar[str]
    implementation: ClassVar[str]
    """``module:Class`` of what these settings are for; imported only when it is needed."""

    def __init_subclass__(cls) -> None:
        if "name" in cls.__dict__:
            cls.known[cls.name] = cls  # type: ignore[assignment]

    @classmethod
    def choose(cls, value: str | Mapping[str, Any] | Self) -> Self:
        """The settings behind a name, a mapping with a ``name`` key, or settings themselves."""
        if isinstance(value, cls):
            return value
        if not isinstance(value, (str, Mapping)):
            raise HoldfastError(f"{cls.kind} must be a name or a mapping with a name, got {value!r}")
        values = {"name": value} if isinstance(value, str) else dict(value)
        if "name" not in values:
            raise HoldfastError(f"{cls.kind} {values!r} has no name; add one of: {', '.join(cls.known)}")
        name = values.pop("name")
        if not isinstance(name, str):
            raise HoldfastError(f"the name of {cls.kind} must be text, got {name!r}")
        if name not in cls.known:
            raise unknown(cls.kind, name, cls.known)
        return build(cls.known[name], values, where=f"{cls.kind} {name}")

    def switched(self, name: str) -> Self:
        """Another of the family, with its defaults; where it is akin, what both have stays as it is."""
        if name == self.name:
            return self
        fresh = type(self).choose(name)
        if not self.akin(fresh):
            return fresh
        shared = {f.name for f in fields(fresh)} & {f.name for f in fields(self)}
        return replace(fresh, **{field: getattr(self, field) for field in shared})

    def akin(self, other: Choice) -> bool:
        """Whether settings of the same name mean the same in both."""
        return False

    def load(self) -> Any:
        """The class these settings are for."""
        module, _, attribute = self.implementation.partition(":")
        return getattr(import_module(module), attribute)
