"""Settings that are one of several registered parts, each with settings of its own: the method and the ascent."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from typing import Any, ClassVar, Self

from holdfast.errors import HoldfastError
from holdfast.parts import ASCENTS, METHODS, AscentPart, MethodPart, Part, Registry
from holdfast.settings.loader import build


@dataclass(frozen=True)
class Choice:
    """Base of a family of settings. A family sets its ``registry``; the decorator of a part sets its ``name``."""

    registry: ClassVar[Registry[Any]]
    name: ClassVar[str]

    @classmethod
    def choose(cls, value: str | Mapping[str, Any] | Self) -> Self:
        """The settings behind a name, a mapping with a ``name`` key, or settings themselves."""
        kind, known = cls.registry.kind, cls.registry
        if isinstance(value, cls):
            return value
        if not isinstance(value, (str, Mapping)):
            raise HoldfastError(f"{kind} must be a name or a mapping with a name, got {value!r}")
        values = {"name": value} if isinstance(value, str) else dict(value)
        if "name" not in values:
            raise HoldfastError(f"{kind} {values!r} has no name; add one of: {', '.join(known)}")
        name = values.pop("name")
        if not isinstance(name, str):
            raise HoldfastError(f"the name of {kind} must be text, got {name!r}")
        made: type[Self] = known[name].made
        return build(made, values, where=f"{kind} {name}")

    @property
    def part(self) -> Part:
        """What it declares of itself."""
        part: Part = self.registry[self.name]
        return part

    def switched(self, name: str) -> Self:
        """Another of the family, with its defaults; settings that both have are kept where they mean the same."""
        if name == self.name:
            return self
        fresh = type(self).choose(name)
        if not self.compatible_with(fresh):
            return fresh
        shared = {f.name for f in fields(fresh)} & {f.name for f in fields(self)}
        return replace(fresh, **{field: getattr(self, field) for field in shared})

    def compatible_with(self, other: Choice) -> bool:
        """Whether settings of the same name mean the same in both."""
        return False


@dataclass(frozen=True)
class MethodSettings(Choice):
    """The settings of a training method, whichever it is; its algorithm is in holdfast.methods.

    >>> MethodSettings.choose("erm")
    Erm()
    >>> MethodSettings.choose("ermm")
    Traceback (most recent call last):
    holdfast.errors.HoldfastError: unknown method 'ermm'; did you mean 'erm'?
    """

    registry: ClassVar[Registry[MethodPart]] = METHODS

    def compatible_with(self, other: Choice) -> bool:
        """One extends the other, as jtt+biasadv jtt: so a baseline differs from it in nothing but the extension."""
        return other.name.partition("+")[0] == self.name.partition("+")[0]

    @property
    def learns_unlabeled(self) -> bool:
        return self.registry[self.name].learns_unlabeled


@dataclass(frozen=True)
class AscentSettings(Choice):
    """The settings of an ascent in weight space, whichever it is; what it does is in holdfast.ascents.

    >>> AscentSettings.choose({"name": "fsam", "rho": 0.1}).rho
    0.1
    """

    registry: ClassVar[Registry[AscentPart]] = ASCENTS
    measure: ClassVar[str] = "absolute"
    """What the radius is a distance in: absolute, or relative to the size of each weight."""

    def compatible_with(self, other: Choice) -> bool:
        """A radius means the same in both."""
        return isinstance(other, AscentSettings) and other.measure == self.measure
