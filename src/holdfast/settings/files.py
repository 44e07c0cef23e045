"""Settings that people write by hand, as YAML."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

from holdfast.errors import HoldfastError
from holdfast.settings.names import CONFLICT, takes_conflict
from holdfast.settings.training import DataSettings


def read_yaml(path: Path) -> dict[str, Any]:
    """Flat settings values from a file. ``environment``, which a run records there, is not a setting."""
    try:
        values = yaml.safe_load(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise HoldfastError(f"cannot read settings from {path}: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise HoldfastError(f"cannot read settings from {path}: it is no UTF-8 text ({error.reason})") from error
    except yaml.YAMLError as error:
        raise HoldfastError(f"{path} is not valid YAML: {error}") from error
    if not isinstance(values, dict):
        raise HoldfastError(f"{path} must hold 'key: value' lines, got {values!r:.40}")
    recorded = values.pop("environment", None) is not None
    # Earlier versions wrote a conflict of 0.05, or what was given, for data that cannot use it.
    if not takes_conflict(values.get("data", DataSettings.name)) and (recorded or values.get("conflict") == CONFLICT):
        values.pop("conflict", None)
    return values


def layered(*layers: Mapping[str, Any]) -> dict[str, Any]:
    """Flat settings values of which later ones win. A share of conflict does not outlast the data it was given for.

    >>> layered({"data": "coloured-digits", "conflict": 0.01, "epochs": 9}, {"data": "bar"})
    {'data': 'bar', 'epochs': 9}
    """
    values: dict[str, Any] = {}
    for layer in layers:
        if "data" in layer and not takes_conflict(layer["data"]):
            values.pop("conflict", None)
        values |= layer
    return values
