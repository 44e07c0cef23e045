"""Parts that declare themselves: what a method, ascent, check, detector, corruption, reader or model source says of
itself, and the registries that find it. Open this file to see what a declaration holds, or to add a kind of part.

A part is one file. The decorator of its kind stands on the class or function that does the work and says everything
that others need to know: lists, ``--help``, gates, budgets, reports and conformance tests read the declaration, and
nobody else knows the part's name. The files of the package are found where each kind lives; those of other packages by
the entry-point group ``holdfast``, whose entries name modules to import.

Nothing here imports torch, and a declaration should not either: import it inside the functions that use it, or
``holdfast --help`` waits for it.
"""

from __future__ import annotations

import pkgutil
import warnings
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cache
from importlib import import_module, metadata
from pathlib import Path
from typing import Any, Generic, Literal, TypeVar

from holdfast.errors import HoldfastError, unknown
from holdfast.types import Measure, Needs

ENTRY_POINTS = "holdfast"


@dataclass(frozen=True)
class Part:
    """What every part says of itself.

    name: as people write it. about: one line for lists and ``--help``. made: the class or function that does the work.
    order: place in lists and reports; parts of one order are listed by name.
    """

    name: str
    about: str
    made: Any = field(repr=False)
    order: int = field(default=100, kw_only=True)


P = TypeVar("P", bound=Part)
Made = TypeVar("Made")


class Registry(Mapping[str, P], Generic[P]):
    """The parts of one kind by name, found when first asked for.

    kind: what people call one of them. homes: modules and packages of holdfast whose files declare them.
    """

    def __init__(self, kind: str, *homes: str) -> None:
        self.kind, self.homes = kind, homes
        self._parts: dict[str, P] = {}
        self._found = False

    def add(self, part: P) -> None:
        """Register a part. A name is given once; the same file loaded again may replace its own."""
        before = self._parts.get(part.name)
        if before is not None and _place(before.made) != _place(part.made):
            raise HoldfastError(
                f"two parts declare the {self.kind} {part.name!r}: {_place(before.made)} and {_place(part.made)}; "
                "rename one of them"
            )
        self._parts[part.name] = part

    def __getitem__(self, name: str) -> P:
        found = self._all()
        if name not in found:
            raise unknown(self.kind, name, self)
        return found[name]

    def __contains__(self, name: object) -> bool:
        return name in self._all()

    def __iter__(self) -> Iterator[str]:
        return (part.name for part in sorted(self._all().values(), key=lambda part: (part.order, part.name)))

    def __len__(self) -> int:
        return len(self._all())

    def _all(self) -> dict[str, P]:
        if not self._found:
            self._found = True  # before importing: a part may look at its own registry
            for home in self.homes:
                _import_all(home)
            load_entry_points()
        return self._parts


def _place(made: Any) -> str:
    return f"{getattr(made, '__module__', '?')}.{getattr(made, '__qualname__', made)}"


def _import_all(home: str) -> None:
    """A module, or a package with everything in it that is not private."""
    module = import_module(home)
    for found in pkgutil.iter_modules(getattr(module, "__path__", ())):
        if not found.name.startswith("_"):
            import_module(f"{home}.{found.name}")


@cache
def load_entry_points() -> tuple[str, ...]:
    """Import what other packages offer under the entry-point group ``holdfast``; one that fails is named."""
    loaded = []
    for entry in metadata.entry_points(group=ENTRY_POINTS):
        try:
            entry.load()
        except Exception as error:  # whatever somebody else's module raises must not end ours
            owner = entry.dist.name if entry.dist is not None else entry.value
            warnings.warn(
                f"the parts of {owner} were not loaded: importing {entry.value} failed with "
                f"{type(error).__name__}: {error}; update or uninstall {owner}",
                RuntimeWarning,
                stacklevel=2,
            )
        else:
            loaded.append(entry.value)
    return tuple(loaded)


@dataclass(frozen=True)
class CheckPart(Part):
    """One kind of measurement in an audit. made: a frozen dataclass of its settings with ``run(subject)``."""

    title: str = field(kw_only=True)
    needs: Needs = field(default=Needs.NOTHING, kw_only=True)
    measures: tuple[Measure, ...] = field(default=(), kw_only=True)


CHECKS: Registry[CheckPart] = Registry("check", "holdfast.audits.checks")


def check(
    name: str,
    *,
    title: str,
    about: str,
    needs: Needs = Needs.NOTHING,
    measures: tuple[Measure, ...] = (),
    order: int = 100,
) -> Callable[[Made], Made]:
    """Declare a check of an audit."""

    def declare(made: Made) -> Made:
        CHECKS.add(CheckPart(name, about, made, title=title, needs=needs, measures=measures, order=order))
        return made

    return declare


@dataclass(frozen=True)
class MethodPart(Part):
    """A training method. made: a frozen dataclass of its settings, a subclass of ``holdfast.methods.Method``.

    passes: what a step costs in forward and backward passes at the default settings, where a plain one costs 1.
    """

    needs: Needs = field(default=Needs.NOTHING, kw_only=True)
    passes: float = field(default=1.0, kw_only=True)

    @property
    def learns_unlabeled(self) -> bool:
        """Whether it also learns from images without labels."""
        return Needs.UNLABELLED in self.needs


METHODS: Registry[MethodPart] = Registry("method", "holdfast.methods")


def method(
    name: str, *, about: str, needs: Needs = Needs.NOTHING, passes: float = 1.0, order: int = 100
) -> Callable[[type[Made]], type[Made]]:
    """Declare a training method: on top of ``@dataclass(frozen=True)``, so that its settings are known."""

    def declare(made: type[Made]) -> type[Made]:
        METHODS.add(MethodPart(name, about, _named(made, name, about), needs=needs, passes=passes, order=order))
        return made

    return declare


def _named(made: type[Made], name: str, about: str) -> type[Made]:
    """The class with its name and, where it has no docstring but the one a dataclass gets, with the line about it."""
    made.name = name  # type: ignore[attr-defined]
    if (made.__doc__ or "").startswith(f"{made.__name__}("):
        made.__doc__ = about
    return made


@dataclass(frozen=True)
class AscentPart(Part):
    """Where in weight space the gradient is taken. made: a frozen dataclass, a subclass of ``holdfast.ascents.Ascent``.

    passes: what a step costs in forward and backward passes of a batch, where a plain one costs 1; the pass over the
    whole training set, which some make at every step, is not in it.
    """

    passes: float = field(default=2.0, kw_only=True)


ASCENTS: Registry[AscentPart] = Registry("ascent", "holdfast.ascents")


def ascent(name: str, *, about: str, passes: float = 2.0, order: int = 100) -> Callable[[type[Made]], type[Made]]:
    """Declare an ascent: on top of ``@dataclass(frozen=True)``, so that its settings are known."""

    def declare(made: type[Made]) -> type[Made]:
        ASCENTS.add(AscentPart(name, about, _named(made, name, about), passes=passes, order=order))
        return made

    return declare


@dataclass(frozen=True)
class DetectorPart(Part):
    """A score of how anomalous an image is. made: a subclass of ``holdfast.detect.Detector``.

    reads: the fields of ``holdfast.detect.Features`` that it is computed from; the first is what a bare tensor means.
    """

    reads: tuple[str, ...] = field(kw_only=True)


DETECTORS: Registry[DetectorPart] = Registry("detector", "holdfast.detect.detectors")


def detector(name: str, *, about: str, reads: tuple[str, ...], order: int = 100) -> Callable[[Made], Made]:
    """Declare a detector; its class gets the attributes ``name`` and ``reads`` from here."""

    def declare(made: Made) -> Made:
        DETECTORS.add(DetectorPart(name, about, made, reads=reads, order=order))
        vars_of: Any = made
        vars_of.name, vars_of.reads = name, reads
        return made

    return declare


@dataclass(frozen=True)
class CorruptionPart(Part):
    """A corruption of image batches. made: ``f(x, *, severity, generator)``, x (B, 1 or 3, H, W) float in [0, 1].

    family: the set it was published in; a corruption of your own needs none. short: its name within the family, as
    findings show it. aliases: other spellings that find it. scale: "severity" takes 1 to 5; "strength", which ``made``
    then takes instead, is a multiple of the published setting. random: whether it draws anything. extra: left out of
    the family's published mean. cpu_only: images are brought to the CPU for it. files: what it reads, if anything.
    """

    family: str = field(default="", kw_only=True)
    short: str = field(default="", kw_only=True)
    aliases: tuple[str, ...] = field(default=(), kw_only=True)
    scale: Literal["severity", "strength"] = field(default="severity", kw_only=True)
    random: bool = field(default=True, kw_only=True)
    extra: bool = field(default=False, kw_only=True)
    cpu_only: bool = field(default=False, kw_only=True)
    files: str = field(default="", kw_only=True)


CORRUPTIONS: Registry[CorruptionPart] = Registry("corruption", "holdfast.corruptions")


def corruption(name: str, *, about: str, short: str = "", **declared: Any) -> Callable[[Made], Made]:
    """Declare a corruption of image batches. declared: further fields of :class:`CorruptionPart`."""

    def declare(made: Made) -> Made:
        CORRUPTIONS.add(CorruptionPart(name, about, made, short=short or name, **declared))
        return made

    return declare


@dataclass(frozen=True)
class ReaderPart(Part):
    """A reader of data. made: ``f(source, options)`` from a name or path and ``holdfast.data.listing.ReaderOptions`` to
    a ``Dataset`` of arrays or a ``Listing`` of image files.

    names: sets that it reads by name, each with a line about it. suffixes: ends of file names that it reads.
    recognises: whether a folder, or a file with such a suffix, is of this kind; the first reader by ``order`` that says
    yes reads it. takes: which of the options conflict, names, label and group it uses; given another, it is refused.
    """

    names: Mapping[str, str] = field(default_factory=dict, kw_only=True)
    suffixes: tuple[str, ...] = field(default=(), kw_only=True)
    recognises: Callable[[Path], bool] | None = field(default=None, kw_only=True)
    takes: tuple[str, ...] = field(default=(), kw_only=True)

    def reads(self, path: Path) -> bool:
        """Whether this is a reader of an existing file or folder."""
        if path.is_dir():
            return self.recognises is not None and self.recognises(path)
        return path.suffix.lower() in self.suffixes and (self.recognises is None or self.recognises(path))


READERS: Registry[ReaderPart] = Registry("data reader", "holdfast.data.readers")


def reader(
    name: str,
    *,
    about: str,
    names: Mapping[str, str] | tuple[str, ...] = (),
    suffixes: tuple[str, ...] = (),
    recognises: Callable[[Path], bool] | None = None,
    takes: tuple[str, ...] = (),
    order: int = 100,
) -> Callable[[Made], Made]:
    """Declare a reader of data. names: with a line about each, or alone where ``about`` says enough."""
    described = dict(names) if isinstance(names, Mapping) else dict.fromkeys(names, about)

    def declare(made: Made) -> Made:
        part = ReaderPart(
            name, about, made, names=described, suffixes=suffixes, recognises=recognises, takes=takes, order=order
        )
        READERS.add(part)
        return made

    return declare


def named_data() -> dict[str, ReaderPart]:
    """The reader of every set that has a name, in the order of lists."""
    found: dict[str, ReaderPart] = {}
    for part in READERS.values():
        for name in part.names:
            if name in found:
                raise HoldfastError(
                    f"two readers read {name!r}: {found[name].name} and {part.name}; rename one of them"
                )
            found[name] = part
    return found


def described_data() -> dict[str, str]:
    """Every set that has a name and every kind of file and folder that is read, with a line about each."""
    named = {name: part.names[name] for name, part in named_data().items()}
    return named | {" ".join(part.suffixes) or part.name: part.about for part in READERS.values() if not part.names}


def data_syntax() -> str:
    """How data is given, for help and messages."""
    suffixes = dict.fromkeys(suffix for part in READERS.values() for suffix in part.suffixes)
    return f"a name (holdfast list data), a folder of images, or a file that ends in {', '.join(suffixes)}"


@dataclass(frozen=True)
class SourcePart(Part):
    """A source of models. made: a subclass of ``holdfast.models.source_types.ModelSource``.

    syntax: how a model is specified, as ``--help`` and messages show it; empty for what only Python can hand over.
    prefix: what a specification starts with, such as ``timm:``; it is cut off. more_prefixes: others, which stay.
    suffixes: ends of file names that it opens. folders: whether it opens folders.
    """

    syntax: str = field(default="", kw_only=True)
    prefix: str = field(default="", kw_only=True)
    more_prefixes: tuple[str, ...] = field(default=(), kw_only=True)
    suffixes: tuple[str, ...] = field(default=(), kw_only=True)
    folders: bool = field(default=False, kw_only=True)


MODEL_SOURCES: Registry[SourcePart] = Registry("model source", "holdfast.models.sources")


def model_syntax(*, training: bool = False) -> str:
    """How a model is given, for help and messages. training: of those that can be trained, else audited."""
    if not training:
        return ", ".join(part.syntax for part in MODEL_SOURCES.values() if part.syntax)
    prefixes = [part.prefix for part in MODEL_SOURCES.values() if part.prefix and part.made.trains()]
    return f"a name that 'holdfast list models' shows: convnet, ..., {', '.join(f'{p}NAME' for p in prefixes)}"


def source(
    name: str,
    *,
    about: str,
    syntax: str = "",
    prefix: str = "",
    more_prefixes: tuple[str, ...] = (),
    suffixes: tuple[str, ...] = (),
    folders: bool = False,
    order: int = 100,
) -> Callable[[Made], Made]:
    """Declare a source of models, for ``train --model`` and ``audit MODEL`` alike."""

    def declare(made: Made) -> Made:
        options: dict[str, Any] = {"syntax": syntax, "prefix": prefix, "more_prefixes": more_prefixes}
        options |= {"suffixes": suffixes, "folders": folders, "order": order}
        MODEL_SOURCES.add(SourcePart(name, about, made, **options))
        return made

    return declare
