"""Named settings, one YAML file each; a recipe's name is its path without the ending."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from holdfast.errors import unknown
from holdfast.settings import read_yaml

FOLDER = Path(__file__).parent


def recipe_names() -> list[str]:
    """Every recipe, sorted.

    >>> "erm/cifar10-resnet18" in recipe_names()
    True
    """
    return sorted(path.relative_to(FOLDER).with_suffix("").as_posix() for path in FOLDER.rglob("*.yaml"))


def read_recipe(name: str) -> dict[str, Any]:
    """The settings of a recipe, as flat values."""
    if name not in recipe_names():
        raise unknown("recipe", name, recipe_names())
    return read_yaml(FOLDER / f"{name}.yaml")
