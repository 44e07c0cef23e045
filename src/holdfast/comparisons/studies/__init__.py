"""Named comparisons: which settings to vary around a recipe, as YAML with ``methods, vary, grid, baseline, seeds``."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from holdfast.errors import unknown
from holdfast.settings import read_yaml

FOLDER = Path(__file__).parent


def study_names() -> list[str]:
    """Every study, sorted.

    >>> study_names()
    ['biasadv-sensitivity', 'fsam-batch', 'fsam-radius', 'jtt-grid']
    """
    return sorted(path.stem for path in FOLDER.glob("*.yaml"))


def read_study(name: str) -> dict[str, Any]:
    """What a study varies."""
    if name not in study_names():
        raise unknown("study", name, study_names())
    return read_yaml(FOLDER / f"{name}.yaml")
