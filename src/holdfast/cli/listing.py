"""``holdfast list``: every registered part with its one-line description. Open this file to add a kind to the list."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated

from tyro.conf import Positional, arg

from holdfast.cli.common import parse, say
from holdfast.errors import unknown
from holdfast.parts import (
    ASCENTS,
    CHECKS,
    CORRUPTIONS,
    DETECTORS,
    METHODS,
    MODEL_SOURCES,
    Part,
    described_data,
)
from holdfast.types import Measure


def _parts(registry: Mapping[str, Part]) -> list[str]:
    return _rows({part.name: part.about for part in registry.values()})


def _rows(described: Mapping[str, str]) -> list[str]:
    width = max(map(len, described), default=0)
    return [f"{name:<{width}}  {about}".rstrip() for name, about in described.items()]


def _measures() -> list[str]:
    """What gates take and findings are called, check by check."""
    return _rows({m.name: _described(m, part.title) for part in CHECKS.values() for m in part.measures})


def _described(measure: Measure, check: str) -> str:
    gate = ", gate" if measure.gate else ""
    better = "" if measure.better == "neither" else f", {measure.better} is better"
    return f"{measure.title} ({check}{better}{gate})"


def _recipes() -> Sequence[str]:
    from holdfast.comparisons.recipes import recipe_names

    return recipe_names()


def _studies() -> Sequence[str]:
    from holdfast.comparisons.plans import study_names

    return study_names()


def _models() -> Sequence[str]:
    from holdfast.models import model_names

    return [f"{MODEL_SOURCES[source].prefix}{name}" for source, names in model_names().items() for name in names]


def _sources() -> list[str]:
    return _rows({part.syntax or part.name: part.about for part in MODEL_SOURCES.values()})


KINDS: dict[str, Callable[[], Sequence[str]]] = {
    "methods": lambda: _parts(METHODS),
    "ascents": lambda: _parts(ASCENTS),
    "checks": lambda: _parts(CHECKS),
    "measures": _measures,
    "detectors": lambda: _parts(DETECTORS),
    "corruptions": lambda: _parts(CORRUPTIONS),
    "data": lambda: _rows(described_data()),
    "sources": _sources,
    "recipes": _recipes,
    "studies": _studies,
    "models": _models,
}


@dataclass(frozen=True)
class ListOptions:
    """What to list."""

    what: Annotated[Positional[str], arg(metavar=f"[{'|'.join(KINDS)}]")] = "all"
    """One kind, or everything but corruptions and the many model names."""


def list_(words: list[str]) -> int:
    """List methods, ascents, checks, measures, detectors, corruptions, data sets, models, recipes or studies."""
    options: ListOptions = parse(ListOptions, words, "list", list_.__doc__)
    if options.what not in KINDS and options.what != "all":
        raise unknown("kind", options.what, KINDS)
    if options.what != "all":
        say("\n".join(KINDS[options.what]()))
        return 0
    for kind, lines in KINDS.items():
        if kind not in ("models", "corruptions"):  # the latter import torch, which takes seconds
            say("\n  ".join([f"{kind}:", *lines()]))
    return 0
