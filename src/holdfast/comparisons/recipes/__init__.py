"""Named settings. A YAML file is one recipe, or a family of them where it has axes.

A recipe's name is its path without the ending. A family's recipes are all combinations of one choice an axis, each
named after its choices: ``fsam/grid.yaml`` with the choices cifar10, resnet18 and sam is ``fsam/cifar10-resnet18-sam``;
a choice named "" adds nothing to the name, and a file not called grid puts its own name first. The values are those
under ``common``, then of each choice, then of every entry of ``where`` whose choices (``of``) are all taken.
"""

from __future__ import annotations

import fnmatch
from collections.abc import Iterable, Iterator
from functools import cache
from itertools import product
from pathlib import Path
from typing import Any

from holdfast.errors import require_known, unknown
from holdfast.settings import read_yaml

FOLDER = Path(__file__).parent


def recipe_names() -> list[str]:
    """Every recipe, sorted.

    >>> {"erm/cifar10-resnet18", "fsam/cifar100-wrn-28-10", "fsam/deit-small-sam"} <= set(recipe_names())
    True
    """
    return sorted(_recipes())


def find_recipes(patterns: Iterable[str]) -> list[str]:
    """The recipes that names or patterns stand for, each once, in the order given.

    >>> find_recipes(["fsam/deit-small-sam", "fsam/deit-*"])
    ['fsam/deit-small-sam', 'fsam/deit-small', 'fsam/deit-small-adamw']
    """
    found: list[str] = []
    for pattern in patterns:
        fitting = fnmatch.filter(recipe_names(), pattern)
        if not fitting:
            raise unknown("recipe", pattern, recipe_names(), listed_by="holdfast list recipes")
        found += fitting
    return list(dict.fromkeys(found))


def read_recipe(name: str) -> dict[str, Any]:
    recipes = _recipes()
    require_known("recipe", name, recipes, listed_by="holdfast list recipes")
    return dict(recipes[name])


@cache
def _recipes() -> dict[str, dict[str, Any]]:
    found = {}
    for path in FOLDER.rglob("*.yaml"):
        content, place = read_yaml(path), path.relative_to(FOLDER).with_suffix("")
        if "axes" not in content:
            found[place.as_posix()] = content
            continue
        stem = [] if place.name == "grid" else [place.name]
        for choices, values in _combinations(content):
            found[(place.parent / "-".join([*stem, *filter(None, choices)])).as_posix()] = values
    return found


def _combinations(family: dict[str, Any]) -> Iterator[tuple[tuple[str, ...], dict[str, Any]]]:
    for choices in product(*family["axes"]):
        values = dict(family.get("common", {}))
        for axis, choice in zip(family["axes"], choices, strict=True):
            values |= axis[choice] or {}
        for entry in family.get("where", ()):
            if set(entry["of"]) <= set(choices):
                values |= {name: value for name, value in entry.items() if name != "of"}
        yield choices, values
