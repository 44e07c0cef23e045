"""``holdfast list``: every registered part with its one-line description. Open this file to add a kind to the list."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Annotated

from tyro.conf import Positional, arg

from holdfast.cli.common import parse, say
from holdfast.errors import require_known
from holdfast.parts import (
    ASCENTS,
    CHECKS,
    CORRUPTIONS,
    DETECTORS,
    METHODS,
    MODEL_SOURCES,
    TRACKERS,
    Part,
    described_data,
)


def _rows(listed: Mapping[str, Part | str]) -> list[str]:
    width = max(map(len, listed), default=0)
    abouts = {name: own if isinstance(own, str) else own.about for name, own in listed.items()}
    return [f"{name:<{width}}  {about}".rstrip() for name, about in abouts.items()]


def _measures() -> dict[str, str]:
    """What gates take and findings are called, check by check."""
    found = {}
    for part in CHECKS.values():
        for m in part.measures:
            better = "" if m.better == "neither" else f", {m.better} is better"
            named = f" {m.name}:NAME" if m.data_part else f" {m.name}@{m.part.upper()}" if m.part else ""
            found[m.name] = f"{m.title} ({part.title}{better}{f', gate{named}' if m.gate else ''})"
    return found


def _recipes() -> dict[str, str]:
    from holdfast.comparisons.recipes import recipe_names

    return dict.fromkeys(recipe_names(), "")


def _studies() -> dict[str, str]:
    from holdfast.comparisons.plans import study_names

    return dict.fromkeys(study_names(), "")


def _models() -> dict[str, str]:
    from holdfast.models import model_names

    found = [f"{MODEL_SOURCES[source].prefix}{name}" for source, names in model_names().items() for name in names]
    return dict.fromkeys(found, "")


KINDS: dict[str, Callable[[], Mapping[str, Part] | Mapping[str, str]]] = {
    "methods": lambda: METHODS,
    "ascents": lambda: ASCENTS,
    "checks": lambda: CHECKS,
    "measures": _measures,
    "detectors": lambda: DETECTORS,
    "corruptions": lambda: CORRUPTIONS,
    "data": described_data,
    "sources": lambda: {part.syntax or part.name: part.about for part in MODEL_SOURCES.values()},
    "trackers": lambda: TRACKERS,
    "recipes": _recipes,
    "studies": _studies,
    "models": _models,
}


@dataclass(frozen=True)
class ListOptions:
    """What to list."""

    what: Annotated[Positional[str], arg(metavar="[KIND]")] = "all"
    """methods, ascents, checks, measures, detectors, corruptions, data, sources, trackers, recipes, studies or models;
    all leaves out corruptions and the many model names."""


def list_(words: list[str]) -> int:
    """List what there is: methods, ascents, checks, measures, detectors, data, models, recipes and more."""
    options: ListOptions = parse(ListOptions, words, "list", list_.__doc__)
    if options.what != "all":
        require_known("kind", options.what, KINDS)
        say("\n".join(_rows(KINDS[options.what]())))
        return 0
    for kind, listed in KINDS.items():
        if kind not in ("models", "corruptions"):  # the latter import torch, which takes seconds
            say("\n  ".join([f"{kind}:", *_rows(listed())]))
    return 0
