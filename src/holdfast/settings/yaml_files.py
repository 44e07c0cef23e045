"""Settings that people write by hand, as YAML."""

from __future__ import annotations

from collections.abc import Container, Mapping
from pathlib import Path
from typing import Any

import yaml

from holdfast.errors import HoldfastError, require
from holdfast.settings.training import CONFLICT, DataSettings, takes_conflict


class _Loader(yaml.SafeLoader):
    """YAML in which no key stands twice: one of two values would be dropped without a word."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        seen: set[str] = set()
        for key in (key for key, _ in node.value if isinstance(key, yaml.ScalarNode)):
            if key.value in seen:
                raise yaml.constructor.ConstructorError(None, None, f"{key.value!r} is given twice", key.start_mark)
            seen.add(key.value)
        return super().construct_mapping(node, deep)


def read_yaml(path: Path) -> dict[str, Any]:
    """Flat settings values from a file. ``environment``, which a run records there, is not a setting."""
    return _read(path)[0]


def read_config(path: Path, given: Container[str]) -> dict[str, Any]:
    """The same, to train with. What was handed to a run in Python is in no file, and must be among what is given."""
    values, environment = _read(path)
    gone = {
        kind: f"{what} ({environment[f'own_{kind}']})"
        for kind, what in (("data", "a set in memory"), ("model", "a module of its own"))
        if f"own_{kind}" in environment and kind not in given
    }
    require(
        not gone,
        f"{path} is of a run with {' and '.join(gone.values())}, which settings do not hold; name "
        f"{'one' if len(gone) == 1 else 'others'} with {' and '.join(f'--{kind}' for kind in gone)}",
    )
    return values


def _read(path: Path) -> tuple[dict[str, Any], dict[str, Any]]:
    """(settings, environment) of a file."""
    try:
        values = yaml.load(path.read_text(encoding="utf-8"), Loader=_Loader)
    except OSError as error:
        raise HoldfastError(f"cannot read settings from {path}: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise HoldfastError(f"cannot read settings from {path}: it is not UTF-8 text ({error.reason})") from error
    except yaml.MarkedYAMLError as error:
        line = f", line {error.problem_mark.line + 1}" if error.problem_mark is not None else ""
        tab = "; indent with spaces, not tabs" if "'\\t'" in str(error.problem) else ""
        reason = " ".join(filter(None, (error.context, error.problem)))
        raise HoldfastError(f"{path}{line} is not valid YAML: {reason}{tab}") from error
    except (yaml.YAMLError, ValueError, RecursionError) as error:  # dates and numbers out of range; endless nesting
        raise HoldfastError(f"{path} is not valid YAML: {str(error).splitlines()[0]}") from error
    if not isinstance(values, dict):
        got = "nothing" if values is None else f"{values!r:.40}"
        raise HoldfastError(f"{path} must hold settings as 'key: value' lines, got {got}")
    environment = values.pop("environment", None)
    # Earlier versions wrote a conflict of 0.05, or what was given, for data that cannot use it.
    implied = environment is not None or values.get("conflict") == CONFLICT
    if implied and not takes_conflict(values.get("data", DataSettings.name)):
        values.pop("conflict", None)
    return values, environment if isinstance(environment, dict) else {}


def read_environment(run: Path) -> dict[str, Any]:
    """What the run in a folder depends on besides its settings; nothing, where it says none."""
    try:
        return _read(run / "run.yaml")[1]
    except HoldfastError:
        return {}


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
