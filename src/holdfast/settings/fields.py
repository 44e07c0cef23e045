"""How settings are declared and filled: optional fields, families of parts, mappings to settings and back.

Open this file when a value from YAML, a recipe or a keyword argument is read wrongly, or its error does not help.
"""

from __future__ import annotations

import math
import types
import typing
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, fields, is_dataclass, replace
from functools import cache
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Final, Literal, Self, TypeVar, dataclass_transform, get_args

from tyro.conf import arg

from holdfast.errors import HoldfastError, brief, cut, require, require_known
from holdfast.parts import ASCENTS, METHODS, AscentPart, MethodPart, Registry

T = TypeVar("T")

LISTED_BY = "holdfast train --print-config"
"""What shows every setting by its name."""


def default_hint(label: str) -> str:
    """What help says of a default; where it is None or empty, the words of the setting say what happens.

    >>> default_hint("0.1"), default_hint("None")
    ('(default: 0.1)', '')
    """
    return "" if label in ("None", "") else f"(default: {label})"


if TYPE_CHECKING:
    Unset = Annotated[T | None, None]
    """``Unset[int]`` is an int or None."""
else:

    class Unset:
        """``Unset[int]`` is an int or None; help shows it as INT, for None is what leaving it out is for."""

        def __class_getitem__(cls, kind: Any) -> Any:
            choices = get_args(kind)
            metavar = f"{{{','.join(choices)}}}" if choices else kind.__name__.upper()
            return Annotated[kind | None, arg(help_behavior_hint=default_hint, metavar=metavar)]


if TYPE_CHECKING:
    Chosen = Annotated[T, None]
    """``Chosen[int]`` is an int in every training that has begun, which is what most code sees; None before, where it
    was not given: ``holdfast.settings.training_defaults`` chooses it."""
else:
    Chosen = Unset

UNCHOSEN: Final[Any] = None
"""The value of a ``Chosen`` setting that was not given."""

Several = Annotated[tuple[T, ...], arg(help_behavior_hint=default_hint)]
"""``Several[str]`` is any number of strings, also none."""

Switch = Literal["auto", "on", "off"]
"""On, off, or as the program thinks best. A flag without a value is on, and so is ``true`` in YAML or Python."""

KEY_VALUE: Final = "KEY=VALUE"
"""In the type of a list: each value has the form KEY=VALUE, so that other words do not belong to it."""
Pairs = Annotated[tuple[str, ...], arg(metavar="KEY=VALUE [KEY=VALUE ...]", help_behavior_hint=default_hint), KEY_VALUE]

# Settings that several commands have, with what help says of them.
Device = Annotated[str, arg(help="auto, cpu, cuda, cuda:1, ...")]
Root = Annotated[Unset[str], arg(help="Where built-in sets lie (default: $HOLDFAST_ROOT, or ./data).")]
Confine = Annotated[bool, arg(help="Refuse files outside the data's folder: ../, absolute paths, and links out of it.")]
SkipUnreadable = Annotated[
    bool, arg(help="Leave out files that cannot be decoded, and say which, instead of stopping.")
]
Columns = Annotated[
    Unset[str],
    arg(
        help="Which column is which, such as image=file,label=class,group=site; for tables and hf: data. A table's "
        "split=part names the column that says train, val or test."
    ),
]
Workers = Annotated[
    Unset[int],
    arg(
        help="Processes that decode image files; 0 decodes in this process (default: 4, no more than processors; "
        "none for few files, which are decoded once, into memory)."
    ),
]
Quiet = Annotated[bool, arg(help="No progress, only the result.")]

ROLES: Final = ("image", "label", "group", "split")
"""What a column of a table of images can be."""


def parse_columns(given: str | Mapping[str, str] | None) -> dict[str, str]:
    """Column by role, from text or a mapping; ``path`` is the image too.

    >>> parse_columns("image=file, label=class")
    {'image': 'file', 'label': 'class'}
    """
    if given is None:
        return {}
    pairs = given.items() if isinstance(given, Mapping) else [part.partition("=")[::2] for part in given.split(",")]
    found: dict[str, str] = {}
    for role, column in ((str(role).strip(), str(column).strip()) for role, column in pairs):
        role = "image" if role == "path" else role
        shape = "write them as image=file,label=class,group=site"
        shown = cut(columns_text(given))
        require(bool(role and column), f"columns {shown!r} names no column for {cut(role) or 'a role'!r}; {shape}")
        require_known("role of a column", role, ROLES)
        require(role not in found, f"columns {shown!r} gives {role} twice; {shape}")
        found[role] = column
    return found


def columns_text(given: str | Mapping[str, str]) -> str:
    """As the command line has them."""
    return given if isinstance(given, str) else ",".join(f"{role}={column}" for role, column in given.items())


LARGEST_SEED: Final = 2**63 - 1
"""What a generator of torch takes."""


@dataclass(frozen=True)
class Within:
    """The bounds of a number, in the type of its setting: ``Annotated[float, Within(0, 1, "[)")]``.

    ends: "[" or "(" and "]" or ")", as in mathematics; ".." for whole numbers, ends included. Of a tuple, every value
    must be within them, and there must be one.
    """

    low: float
    high: float = math.inf
    ends: str = "[]"

    def __contains__(self, value: float) -> bool:
        above = self.low < value if self.ends[0] == "(" else self.low <= value
        return above and (value < self.high if self.ends[1] == ")" else value <= self.high)

    def __str__(self) -> str:
        if self.high == math.inf:
            return f"{'>' if self.ends[0] == '(' else '>='} {self.low}"
        if self.ends == "..":
            return f"in {self.low}..{'2**63-1' if self.high == LARGEST_SEED else self.high}"
        return f"in {self.ends[0]}{self.low}, {self.high}{self.ends[1]}"

    def require(self, name: str, value: float | tuple[float, ...]) -> None:
        """Refuse a value that is not within the bounds; the words name it and what would be."""
        finite = "finite " if self.high == math.inf and self.ends[1] == ")" else ""
        if isinstance(value, tuple):
            within = len(value) > 0 and all(one in self for one in value)
            require(within, f"{name} must be {finite}numbers {self}, got {brief(list(value))}")
        else:
            kind = f"a {finite}number " if finite and not math.isfinite(value) else ""
            require(value in self, f"{name} must be {kind}{self}, got {brief(value)}")


@dataclass(frozen=True)
class Bounded:
    """Settings whose numbers must be within the bounds that their types declare.

    >>> from holdfast.settings.training import AugmentSettings
    >>> AugmentSettings(crop=-1)
    Traceback (most recent call last):
    holdfast.errors.HoldfastError: crop must be >= 0, got -1
    """

    asked_as: ClassVar[str] = ""
    """What stands before the name of a setting where people give it, such as "attacks." of a check."""

    def __post_init__(self) -> None:
        for name, bounds in _bounds(type(self)).items():  # type: ignore[arg-type]
            if (value := getattr(self, name)) is not None:
                bounds.require(f"{self.asked_as}{name}", value)


@cache
def _bounds(settings: type) -> dict[str, Within]:
    """The bounds of each setting; a class that changes a default alone keeps those of its base."""
    found: dict[str, Within] = {}
    for base in settings.__mro__:
        for name, kind in typing.get_type_hints(base, include_extras=True).items():
            for bounds in getattr(kind, "__metadata__", ()):
                if isinstance(bounds, Within):
                    found.setdefault(name, bounds)
    return found


def build(settings: type[T], values: Mapping[str, Any], *, where: str = "settings", group: str = "name") -> T:
    """Settings of the given type from flat values; what is not named has its default.

    group: what people call the field ``name``, which for them is the group's own name ("data: digits").

    >>> from holdfast.settings.training import TrainSettings
    >>> build(TrainSettings, {"optimizer": "adam", "lr": "1e-3"}).optimizer.lr
    0.001
    >>> build(TrainSettings, {"epoch": 3})
    Traceback (most recent call last):
    holdfast.errors.HoldfastError: unknown settings key 'epoch'; did you mean 'epochs'?
    """
    hints, leaves = _hints(settings), _leaves(settings)  # type: ignore[arg-type]
    for key in values:
        if key not in leaves:
            _refuse_flag_of_part(hints, key, values, where)
        require_known(f"{where} key", key, leaves, listed_by=LISTED_BY)
    made: dict[str, Any] = {}
    for f in fields(settings):  # type: ignore[arg-type]
        kind = hints[f.name]
        if _is_group(kind):
            own = {inner: values[outer] for outer, (home, inner) in leaves.items()
                   if home == f.name and outer in values}  # fmt: skip
            made[f.name] = build(kind, own, where=where, group=f.name)
        elif f.name in values:
            made[f.name] = convert(values[f.name], kind, group if f.name == "name" else f.name)
    return settings(**made)


def _refuse_flag_of_part(hints: Mapping[str, Any], key: object, values: Mapping[str, Any], where: str) -> None:
    """Refuse a setting of a method or an ascent that is named as its flag is (``ascent.rho``): outside of the command
    line it goes with the name of the part."""
    for group, kind in hints.items():
        inner = str(key).removeprefix(group).lstrip("._")
        if inner == str(key) or not (isinstance(kind, type) and issubclass(kind, Choice)):
            continue
        named, known = values.get(group), kind.registry
        taken_by = [name for name in known if any(f.name == inner for f in fields(known[name].made))]
        given = dict(named) if isinstance(named, Mapping) else {"name": named} if isinstance(named, str) else {}
        if taken_by:
            form = {"name": taken_by[0]} | given | {inner: values[key]}  # type: ignore[index]
            hint = f"a setting of the {group} goes with its name: {group}={cut(repr(form))}"
            raise HoldfastError(f"unknown {where} key {brief(key)}; {hint}")


def split_off(settings: type[T], values: Mapping[str, Any]) -> tuple[T, dict[str, Any]]:
    """Settings of the given type from those values that are theirs, and the other values: a function may take settings
    of several types as keyword arguments.

    >>> from holdfast.settings.command_settings import EngineSettings
    >>> where, others = split_off(EngineSettings, {"threads": 2, "epochs": 3})
    >>> where.threads, others
    (2, {'epochs': 3})
    """
    names = {f.name for f in fields(settings)}  # type: ignore[arg-type]
    own = {name: value for name, value in values.items() if name in names}
    return build(settings, own), {name: value for name, value in values.items() if name not in names}


def flatten(settings: Any) -> dict[str, Any]:
    """Settings as plain flat values, such that ``build(type(settings), flatten(settings)) == settings``."""
    flat: dict[str, Any] = {}
    for f in fields(settings):
        value = getattr(settings, f.name)
        if isinstance(value, Choice):
            own = flatten(value)
            flat[f.name] = {"name": value.name, **own} if own else value.name
        elif is_dataclass(value):
            flat |= {f.name if name == "name" else name: v for name, v in flatten(value).items()}
        else:
            flat[f.name] = list(value) if isinstance(value, tuple) else value
    return flat


def convert(value: Any, kind: Any, name: str) -> Any:
    """A plain value as the annotated type, or an error that names both.

    >>> convert("1e-3", float, "lr"), convert([1, 2], tuple[int, ...], "milestones")
    (0.001, (1, 2))
    >>> convert(2.5, int, "epochs")
    Traceback (most recent call last):
    holdfast.errors.HoldfastError: epochs must be a whole number, got 2.5
    """
    if isinstance(kind, type) and issubclass(kind, Choice):
        return kind.choose(value)
    origin, args = typing.get_origin(kind), typing.get_args(kind)
    if origin in (typing.Union, types.UnionType):
        if value is None and type(None) in args:
            return None
        *others, last = (a for a in args if a is not type(None))
        for kind in others:
            with suppress(HoldfastError):
                return convert(value, kind, name)
        return convert(value, last, name)
    if origin is typing.Literal:
        if isinstance(value, bool) and {"on", "off"} <= set(args):  # YAML reads on and off as such
            value = "on" if value else "off"
        require_known(name, value, args)
        return value
    if origin is tuple:
        if isinstance(value, str) and str in typing.get_args(args[0]):  # a word that stands for a list of numbers
            value = [value]
        require(isinstance(value, (list, tuple)), f"{name} must be a list, got {brief(value)}")
        kinds = [args[0]] * len(value) if args[-1] is Ellipsis else list(args)
        require(len(kinds) == len(value), f"{name} must have {len(kinds)} values, got {brief(value)}")
        return tuple(convert(v, k, name) for v, k in zip(value, kinds, strict=True))
    if origin is dict:
        require(isinstance(value, Mapping), f"{name} must be a mapping such as {{NAME: VALUE}}, got {brief(value)}")
        return {convert(k, args[0], name): convert(v, args[1], f"{name}.{k}") for k, v in value.items()}
    words = {int: "a whole number", float: "a number", bool: "true or false", str: "text"}
    if isinstance(value, bool) == (kind is bool):  # a bool is an int for Python
        if kind is int and isinstance(value, int) and not -(2**63) <= value < 2**63:
            raise HoldfastError(f"{name} must be within 64 bits, got {brief(value)}")
        if kind is not float and isinstance(value, kind):
            return value
        if kind is float:
            with suppress(TypeError, ValueError, OverflowError):  # YAML reads 1e-3 as text
                return float(value)
    raise HoldfastError(f"{name} must be {words[kind]}, got {brief(value)}")


@cache
def _hints(settings: Any) -> dict[str, Any]:
    return typing.get_type_hints(settings)


@cache
def _leaves(settings: Any) -> dict[str, tuple[str, str]]:
    """Flat key -> (group field or "", field inside it)."""
    hints = _hints(settings)
    leaves: dict[str, tuple[str, str]] = {}
    for f in fields(settings):
        kind = hints[f.name]
        if _is_group(kind):
            for inner in fields(kind):
                leaves[f.name if inner.name == "name" else inner.name] = (f.name, inner.name)
        else:
            leaves[f.name] = ("", f.name)
    return leaves


def _is_group(kind: Any) -> bool:
    """Whether a field holds settings that are flat outside, not one of several classes."""
    return is_dataclass(kind) and not issubclass(kind, Choice)  # type: ignore[arg-type]


@dataclass_transform(frozen_default=True)
@dataclass(frozen=True)
class Choice(Bounded):
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
            raise HoldfastError(f"{kind} must be a name or a mapping with a name, got {brief(value)}")
        values = {"name": value} if isinstance(value, str) else dict(value)
        if "name" not in values:
            raise HoldfastError(f"{kind} {brief(values)} has no name; add one of: {', '.join(known)}")
        name = values.pop("name")
        require(isinstance(name, str), f"the name of {kind} must be text, got {brief(name)}")
        made: type[Self] = known[name].made
        return build(made, values, where=f"{kind} {name}")

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
