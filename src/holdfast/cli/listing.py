"""``holdfast list``."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated

from tyro.conf import Positional, arg

from holdfast.cli.common import parse
from holdfast.errors import unknown
from holdfast.parts import ASCENTS, CORRUPTIONS, DETECTORS, METHODS, Part


@dataclass(frozen=True)
class ListOptions:
    """What to list."""

    what: Annotated[
        Positional[str], arg(metavar="[methods|ascents|detectors|corruptions|data|recipes|studies|models]")
    ] = "all"
    """One kind, or everything but corruptions and the many model names."""


def list_(words: list[str]) -> int:
    """List methods, ascents, detectors, corruptions, data sets, recipes, studies or models by name."""
    options: ListOptions = parse(ListOptions, words, "list", list_.__doc__)
    from holdfast.comparisons.recipes import recipe_names
    from holdfast.comparisons.studies import study_names
    from holdfast.parts import described_data

    def described(registry: Mapping[str, Part]) -> list[str]:
        return [f"{part.name:<20} {part.about}" for part in registry.values()]

    def models() -> list[str]:
        from holdfast.models import model_names
        from holdfast.parts import MODEL_SOURCES

        return [f"{MODEL_SOURCES[source].prefix}{name}" for source, names in model_names().items() for name in names]

    kinds: dict[str, Callable[[], Sequence[str]]] = {
        "methods": lambda: described(METHODS),
        "ascents": lambda: described(ASCENTS),
        "detectors": lambda: described(DETECTORS),
        "corruptions": lambda: described(CORRUPTIONS),
        "data": lambda: [f"{name:<24} {about}" for name, about in described_data().items()],
        "recipes": recipe_names,
        "studies": study_names,
        "models": models,
    }
    if options.what not in kinds and options.what != "all":
        raise unknown("kind", options.what, kinds)
    for kind in kinds if options.what == "all" else [options.what]:
        if options.what == "all":
            if kind in ("models", "corruptions"):  # the latter import torch, which takes seconds
                continue
            print(f"{kind}:")
        for line in kinds[kind]():
            print(f"  {line}" if options.what == "all" else line)
    return 0
