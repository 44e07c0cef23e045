"""Parts that declare themselves: what a method, ascent, check, detector, corruption, reader, model source or tracker
says of itself, and the registries that find it. Open this file to see what a declaration holds, or to add a kind.

A part is one file. The decorator of its kind stands on the class or function that does the work and says everything
that others need to know: lists, ``--help``, gates, budgets, reports and conformance tests read the declaration, and
nobody else knows the part's name. The files of the package are found where each kind lives; those of other packages by
the entry-point group ``holdfast``, whose entries name modules to import.

Nothing here imports torch, and a declaration should not either: import it inside the functions that use it, or
``holdfast --help`` waits for it.
"""

from __future__ import annotations

import pkgutil
import threading
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cache
from importlib import import_module, metadata
from pathlib import Path
from typing import Any, Final, Generic, Literal, TypeVar

from holdfast.errors import HoldfastError, plain_name, unknown
from holdfast.types import Measure, Needs

ENTRY_POINTS = "holdfast"
_DISCOVERY = threading.RLock()
"""Held while parts are looked for: another thread waits for all of them instead of seeing some. One for all registries,
since looking for parts of one kind may ask for those of another."""


@dataclass(frozen=True, kw_only=True)
class Part:
    """What every part says of itself.

    name: as people write it. about: one line for lists and ``--help``. made: the class or function that does the work.
    order: place in lists and reports; parts of one order are listed by name. aliases: other spellings that find it,
    such as the paper's; case, "-", "_" and " " make no difference anyway.
    """

    name: str
    about: str
    made: Any = field(repr=False)
    order: int = 100
    aliases: tuple[str, ...] = ()

    def attach(self) -> None:
        """Tell the class or function what was declared of it, where it needs to know."""


P = TypeVar("P", bound=Part)
Made = TypeVar("Made")


class Registry(Mapping[str, P], Generic[P]):
    """The parts of one kind by name, found when first asked for.

    kind: what people call one of them. home: the module, or the package whose public files, that declare them.
    """

    def __init__(self, kind: str, part: type[P], home: str) -> None:
        self.kind, self.part, self.home = kind, part, home
        self._parts: dict[str, P] = {}
        self._found = self._finding = False

    def declare(self, name: str, *, about: str, **declared: Any) -> Callable[[Made], Made]:
        """The decorator that registers a part; what it may declare are the fields of the registry's kind of part."""

        def decorate(made: Made) -> Made:
            part = self.part(name=name, about=about, made=made, **declared)
            part.attach()
            self.add(part)
            return made

        return decorate

    def add(self, part: P) -> None:
        """Register a part. A name is given once; the same file loaded again may replace its own."""
        before = self._parts.get(part.name)
        if before is not None and _place(before.made) != _place(part.made):
            places = f"{_place(before.made)} and {_place(part.made)}"
            raise HoldfastError(f"two parts declare the {self.kind} {part.name!r}: {places}; rename one of them")
        self._parts[part.name] = part

    def __getitem__(self, name: str) -> P:
        found = self._find(name)
        if found is None:
            raise unknown(self.kind, name, self)
        return found

    def __contains__(self, name: object) -> bool:
        return self._find(name) is not None

    def _find(self, name: object) -> P | None:
        """A part by its name or another spelling of it; its own name wins over another part's alias."""
        parts = self._all()
        if not isinstance(name, str):
            return None
        if name in parts:
            return parts[name]
        wanted = plain_name(name)
        spelt = [part for part in parts.values() if plain_name(part.name) == wanted]
        spelt += [part for part in parts.values() if wanted in map(plain_name, part.aliases)]
        return spelt[0] if spelt else None

    def names_of(self, given: Iterable[str]) -> list[str]:
        """The declared names behind any spellings of them; what is unknown is refused."""
        return [self[name].name for name in given]

    def __iter__(self) -> Iterator[str]:
        return (part.name for part in sorted(self._all().values(), key=lambda part: (part.order, part.name)))

    def __len__(self) -> int:
        return len(self._all())

    def _all(self) -> dict[str, P]:
        if self._found:
            return self._parts
        with _DISCOVERY:
            if self._found or self._finding:  # found by another thread, or a part looks at its own registry
                return self._parts
            self._finding = True
            try:
                for found in pkgutil.iter_modules(getattr(import_module(self.home), "__path__", ())):
                    if not found.name.startswith("_"):
                        import_module(f"{self.home}.{found.name}")
                load_entry_points()
                self._found = True
            finally:
                self._finding = False
        return self._parts


def _place(made: Any) -> str:
    return f"{getattr(made, '__module__', '?')}.{getattr(made, '__qualname__', made)}"


@cache
def load_entry_points() -> None:
    """Import what other packages offer under the entry-point group ``holdfast``; one that fails is named."""
    for entry in metadata.entry_points(group=ENTRY_POINTS):
        try:
            entry.load()
        except Exception as error:  # whatever somebody else's module raises must not end ours
            owner = entry.dist.name if entry.dist is not None else entry.value
            why = f"importing {entry.value} failed with {type(error).__name__}: {error}; update or uninstall {owner}"
            warnings.warn(f"the parts of {owner} were not loaded: {why}", RuntimeWarning, stacklevel=2)


@dataclass(frozen=True, kw_only=True)
class CheckPart(Part):
    """One kind of measurement in an audit. made: a frozen dataclass of its settings with ``run(subject)``.

    Fields of the dataclass are settings, ``--set CHECK.FIELD=VALUE``, but for those with metadata ``PYTHON_ONLY``.
    share: of a time budget, for a check that is costly; it then has a setting ``images``, and methods
    ``passes(device)`` (forward passes per image, about) and ``usual_images(device)`` (how many where nobody is in a
    hurry, None is all). images_of: which split it takes images from. A check may also have
    ``fixed_seconds(subject, share)`` (what a run takes beyond its images, None where there is no time for that) and
    ``without_fixed()`` (the settings of a run without it, and a note on what is left out).
    """

    title: str
    needs: Needs = Needs.NOTHING
    measures: tuple[Measure, ...] = ()
    share: float = 0.0
    images_of: Literal["test", "train"] = "test"

    def attach(self) -> None:
        self.made.asked_as = f"{self.name}."


PYTHON_ONLY: Final = {"python_only": True}
"""Metadata of a setting that the command line does not take, such as a module."""
NAMES_A_MODEL: Final = {"names_a_model": True}
"""Metadata of a setting that names a model as MODEL does: it is opened before anything is measured."""


@dataclass(frozen=True, kw_only=True)
class SettingsPart(Part):
    """A part that is chosen with settings of its own: made becomes a frozen dataclass of them, if it is not one yet.

    passes: what a step costs in forward and backward passes at the default settings, where a plain one costs 1; where
    it depends on the settings, made has a function ``passes`` that says so.
    """

    passes: float = 1.0

    def attach(self) -> None:
        """Name the class and, where it has only the docstring that a dataclass gets, describe it."""
        if "__dataclass_fields__" not in vars(self.made):
            dataclass(frozen=True)(self.made)
        self.made.name, self.made.declared_passes = self.name, self.passes
        if (self.made.__doc__ or "").startswith(f"{self.made.__name__}("):
            self.made.__doc__ = self.about


@dataclass(frozen=True, kw_only=True)
class MethodPart(SettingsPart):
    """A training method. made: a frozen dataclass of its settings, a subclass of ``holdfast.methods.Method``."""

    needs: Needs = Needs.NOTHING

    @property
    def learns_unlabeled(self) -> bool:
        """Whether it also learns from images without labels."""
        return Needs.UNLABELLED in self.needs


@dataclass(frozen=True, kw_only=True)
class AscentPart(SettingsPart):
    """Where in weight space the gradient is taken. made: a frozen dataclass, a subclass of ``holdfast.ascents.Ascent``.

    passes: without the pass over the whole training set that some make at every step.
    """

    passes: float = 2.0


@dataclass(frozen=True, kw_only=True)
class DetectorPart(Part):
    """A score of how anomalous an image is. made: the detector's class. reads: the features it needs, by name."""

    reads: tuple[str, ...]

    def attach(self) -> None:
        self.made.name, self.made.reads = self.name, self.reads


@dataclass(frozen=True, kw_only=True)
class CorruptionPart(Part):
    """A corruption of image batches. made: ``f(x, *, severity, generator)``, x (B, 1 or 3, H, W) float in [0, 1].

    family: the set it was published in; a corruption of your own needs none. short: its name within the family, as
    findings show it. scale: "severity" takes 1 to 5; "strength", which ``made`` then takes instead, is a multiple of
    the published setting. random: whether it draws anything. extra: left out of the family's published mean. cpu_only:
    images are brought to the CPU for it. files: what it reads, if anything.
    """

    family: str = ""
    short: str = ""
    scale: Literal["severity", "strength"] = "severity"
    random: bool = True
    extra: bool = False
    cpu_only: bool = False
    files: str = ""

    @property
    def label(self) -> str:
        """As findings and reports show it."""
        return self.short or self.name


@dataclass(frozen=True, kw_only=True)
class ReaderPart(Part):
    """A reader of data. made: ``f(source, options)`` from a name or path and ``holdfast.data.listing.ReaderOptions`` to
    a ``Dataset`` of arrays or a ``Listing`` of image files.

    names: sets that it reads by name, with a line about each, or alone where ``about`` says enough. suffixes: ends of
    file names that it reads. prefix: what a name starts with that it reads, such as ``hf:``; it is cut off. urls:
    whether it reads URLs, such as ``s3://bucket/shards``.
    recognises: whether a folder, or a file with such a suffix, is of this kind; the first reader by ``order`` that says
    yes reads it. takes: which of the options conflict, names, label, group and columns it uses; given another, it is
    refused. unlabelled: ``made`` for images that need no label, and have -1 where there is none;
    without it, ``made`` reads those too.
    """

    names: Mapping[str, str] | tuple[str, ...] = ()
    suffixes: tuple[str, ...] = ()
    prefix: str = ""
    urls: bool = False
    recognises: Callable[[Path], bool] | None = None
    takes: tuple[str, ...] = ()
    unlabelled: Callable[[Path, Any], Any] | None = None

    @property
    def described(self) -> dict[str, str]:
        """The names, with a line about each."""
        return dict(self.names) if isinstance(self.names, Mapping) else dict.fromkeys(self.names, self.about)

    def reads(self, path: Path) -> bool:
        """Whether this is a reader of an existing file or folder."""
        if path.is_dir():
            return self.recognises is not None and self.recognises(path)
        return path.suffix.lower() in self.suffixes and (self.recognises is None or self.recognises(path))


@dataclass(frozen=True, kw_only=True)
class SourcePart(Part):
    """A source of models. made: a subclass of ``holdfast.models.source_types.ModelSource``.

    syntax: how a model is specified, as ``--help`` and messages show it; empty for what only Python can hand over.
    prefix: what a specification starts with, such as ``timm:``; it is cut off. more_prefixes: others, which stay.
    suffixes: ends of file names that it opens. folders: whether it opens folders.
    """

    syntax: str = ""
    prefix: str = ""
    more_prefixes: tuple[str, ...] = ()
    suffixes: tuple[str, ...] = ()
    folders: bool = False


@dataclass(frozen=True, kw_only=True)
class TrackerPart(Part):
    """Where trainings are recorded. made: a class with the functions of ``holdfast.trackers.Tracker``.

    package: what must be there to import, by its name in Python. extra: the extra of holdfast that installs it.
    needs_folder: whether it writes into the run folder. remedy: what to do where it cannot start.
    """

    package: str
    extra: str = ""
    needs_folder: bool = False
    remedy: str = ""


METHODS: Registry[MethodPart] = Registry("method", MethodPart, "holdfast.methods")
ASCENTS: Registry[AscentPart] = Registry("ascent", AscentPart, "holdfast.ascents")
CHECKS: Registry[CheckPart] = Registry("check", CheckPart, "holdfast.audits.checks")
DETECTORS: Registry[DetectorPart] = Registry("detector", DetectorPart, "holdfast.detect.detectors")
CORRUPTIONS: Registry[CorruptionPart] = Registry("corruption", CorruptionPart, "holdfast.corruptions")
READERS: Registry[ReaderPart] = Registry("data reader", ReaderPart, "holdfast.data.readers")
MODEL_SOURCES: Registry[SourcePart] = Registry("model source", SourcePart, "holdfast.models.sources")
TRACKERS: Registry[TrackerPart] = Registry("tracker", TrackerPart, "holdfast.trackers")

method, ascent, check, detector = METHODS.declare, ASCENTS.declare, CHECKS.declare, DETECTORS.declare
corruption, reader, source = CORRUPTIONS.declare, READERS.declare, MODEL_SOURCES.declare
tracker = TRACKERS.declare


def named_data() -> dict[str, ReaderPart]:
    """The reader of every set that has a name, in the order of lists."""
    found: dict[str, ReaderPart] = {}
    for part in READERS.values():
        for name in part.names:
            if name in found:
                both = f"{found[name].name} and {part.name}"
                raise HoldfastError(f"two readers read {name!r}: {both}; rename one of them")
            found[name] = part
    return found


def data_name(source: str) -> str:
    """The name of a set behind another spelling of it; anything else stays.

    >>> data_name("Coloured_Digits"), data_name("photos/")
    ('coloured-digits', 'photos/')
    """
    named = named_data()
    return source if source in named else {plain_name(name): name for name in named}.get(plain_name(source), source)


def described_data() -> dict[str, str]:
    """Every set that has a name and every kind of file and folder that is read, with a line about each."""
    named = {name: part.described[name] for name, part in named_data().items()}
    others = [part for part in READERS.values() if not part.names]
    return named | {part.prefix or " ".join(part.suffixes) or part.name: part.about for part in others}


def data_by_prefix(name: object) -> tuple[ReaderPart, str] | None:
    """The reader of a name such as ``hf:OWNER/NAME``, and what follows the prefix, or of a URL, and all of it; None for
    any other."""
    text = name if isinstance(name, str) else ""
    if "://" in text:
        return next(((part, text) for part in READERS.values() if part.urls), None)
    part = next((part for part in READERS.values() if part.prefix and text.startswith(part.prefix)), None)
    return None if part is None else (part, text.removeprefix(part.prefix))


def data_syntax() -> str:
    """How data is given, for help and messages."""
    suffixes = dict.fromkeys(suffix for part in READERS.values() for suffix in part.suffixes)
    prefixes = [f"{part.prefix}NAME_OR_PATH" for part in READERS.values() if part.prefix]
    names = ", ".join(["a name (holdfast list data)", *prefixes])
    names += ", a URL of shards" if any(part.urls for part in READERS.values()) else ""
    return f"{names}, a folder of images, or a file that ends in {', '.join(suffixes)}"


def model_syntax(*, training: bool = False) -> str:
    """How a model is given, for help and messages. training: of those that can be trained, else audited."""
    if not training:
        return ", ".join(part.syntax for part in MODEL_SOURCES.values() if part.syntax)
    trained = [part.syntax for part in MODEL_SOURCES.values() if part.prefix and part.made.trains()]
    forms = ", ".join(syntax.partition(", ")[0].partition("[")[0] for syntax in trained)  # without published weights
    return f"a name that 'holdfast list models' shows: convnet, ..., {forms}"
