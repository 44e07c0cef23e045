"""Settings that people write by hand, as YAML."""

from __future__ import annotations

import os
from collections.abc import Container, Mapping
from pathlib import Path
from typing import Any

import yaml

from holdfast.errors import HoldfastError, brief, cut, first_line, require
from holdfast.printable import printable
from holdfast.settings.training import CONFLICT, DataSettings, takes_conflict

MOST_BYTES = 256_000
MOST_VALUES = 20_000
"""Of a settings file; a run's own has a hundred."""


class _Loader(yaml.SafeLoader):
    """YAML in which no key stands twice: one of two values would be dropped without a word."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        seen: set[str] = set()
        for key in (key for key, _ in node.value if isinstance(key, yaml.ScalarNode)):
            if key.value in seen:
                raise yaml.constructor.ConstructorError(
                    None, None, f"{brief(key.value)} is given twice", key.start_mark
                )
            seen.add(key.value)
        return super().construct_mapping(node, deep)

    def get_single_node(self) -> yaml.Node | None:
        """The document, refused where aliases make few lines a billion values, before any of them is made."""
        node = super().get_single_node()
        if node is not None and _written_out(node, {}) > MOST_VALUES:
            problem = f"with its aliases written out it has more than {MOST_VALUES} values"
            raise yaml.constructor.ConstructorError(None, None, problem, None)
        return node

    def construct_whole(self, node: yaml.ScalarNode) -> int:
        """A number that every part of the program can take; one of thousands of digits cannot even be shown."""
        value = self.construct_yaml_int(node)
        if not -(2**63) <= value < 2**63:
            raise yaml.constructor.ConstructorError(None, None, "a number has more than 64 bits", node.start_mark)
        return value


_Loader.add_constructor("tag:yaml.org,2002:int", _Loader.construct_whole)


def _written_out(node: yaml.Node, known: dict[int, int]) -> int:
    """How many values a node has with every alias written out; more than MOST_VALUES where it is inside itself."""
    if id(node) not in known:
        known[id(node)] = MOST_VALUES + 1
        inner = node.value if isinstance(node, yaml.CollectionNode) else []
        parts = (part for own in inner for part in (own if isinstance(own, tuple) else (own,)))
        known[id(node)] = min(MOST_VALUES + 1, 1 + sum(_written_out(part, known) for part in parts))
    return known[id(node)]


def parse_yaml(text: str) -> Any:
    """Plain values; a ``yaml.YAMLError`` for whatever is wrong with the text."""
    try:
        return yaml.load(text, Loader=_Loader)
    except yaml.YAMLError:
        raise
    except Exception as error:  # dates and numbers out of range, endless nesting, tags on what they are not for
        raise yaml.YAMLError(first_line(error)) from error


def read_yaml(path: Path) -> dict[str, Any]:
    """Flat settings values from a file. ``environment``, which a run records there, is not a setting."""
    return _read(path)[0]


def read_config(path: Path, given: Container[str]) -> dict[str, Any]:
    """The same, to train with. What was handed to a run in Python is in no file, and must be among what is given."""
    values, environment = _read(path)
    gone = {
        kind: f"{what} ({own})"
        for kind, what in (("data", "a set in memory"), ("model", "a module of its own"))
        if (own := handed_over(environment, kind)) is not None and kind not in given
    }
    others = f"{'one' if len(gone) == 1 else 'others'} with {' and '.join(f'--{kind}' for kind in gone)}"
    lost = f"{path} is of a run with {' and '.join(gone.values())}"
    require(not gone, f"{lost}, which settings do not hold; name {others}")
    return values


def _read(path: Path) -> tuple[dict[str, Any], dict[str, Any]]:
    """(settings, environment) of a file."""
    values = load_yaml(path)
    if not isinstance(values, dict):
        got = "nothing" if values is None else brief(values, 40)
        raise HoldfastError(f"{path} must hold settings as 'key: value' lines, got {got}")
    environment = values.pop("environment", None)
    # Earlier versions wrote a conflict of 0.05, or what was given, for data that cannot use it.
    implied = environment is not None or values.get("conflict") == CONFLICT
    if implied and not takes_conflict(values.get("data", DataSettings.name)):
        values.pop("conflict", None)
    return values, environment if isinstance(environment, dict) else {}


def load_yaml(path: Path) -> Any:
    """What a YAML file holds, or an error that says what is wrong and where."""
    try:
        with path.open("rb") as file:
            content = file.read(MOST_BYTES + 1)
        most = f"{MOST_BYTES // 1000} kB, and settings are a few lines"
        require(len(content) <= MOST_BYTES, f"{path} has more than {most}")
        return parse_yaml(content.decode("utf-8-sig"))
    except OSError as error:
        raise HoldfastError(f"cannot read settings from {path}: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise HoldfastError(f"cannot read settings from {path}: it is not UTF-8 text ({error.reason})") from error
    except yaml.MarkedYAMLError as error:
        line = f", line {error.problem_mark.line + 1}" if error.problem_mark is not None else ""
        tab = "; indent with spaces, not tabs" if "'\\t'" in str(error.problem) else ""
        reason = " ".join(filter(None, (error.context, error.problem)))
        raise HoldfastError(f"{path}{line} is not valid YAML: {cut(reason)}{tab}") from error
    except yaml.YAMLError as error:
        raise HoldfastError(f"{path} is not valid YAML: {cut(first_line(error))}") from error


def read_environment(run: Path) -> dict[str, Any]:
    """What the run in a folder depends on besides its settings; nothing, where it says none."""
    try:
        return _read(run / "run.yaml")[1]
    except HoldfastError:
        return {}


def handed_over(environment: Mapping[str, Any], kind: str) -> str | None:
    """The name of the data or model that was handed to a run in Python, as messages show it; None where none was."""
    own = environment.get(f"own_{kind}")
    return None if own is None else cut(printable(str(own)))


def data_of_run(run: str | Path) -> tuple[str, str | None] | None:
    """(Name or path, root) of the data that a run folder was trained on; None where this is not a run folder."""
    path = Path(os.path.expanduser(run), "run.yaml")
    if not os.path.isfile(path):  # unlike Path.is_file, false for a name longer than the system allows
        return None
    values, environment = _read(path)
    if (own := handed_over(environment, "data")) is not None:
        raise HoldfastError(f"{run} was trained on a set in memory ({own}); name the data with --data")
    name, recorded = str(values.get("data", DataSettings.name)), environment.get("data_path")
    root = values.get("root")
    if recorded is not None and not _same_file(name, str(recorded)):  # a relative path, seen from another folder
        gone = f"{run} was trained on {cut(printable(str(recorded)))}, which is not there any more"
        require(os.path.exists(str(recorded)), f"{gone}; name the data with --data")
        name = str(recorded)
    return name, None if root is None else str(root)


def _same_file(first: str, second: str) -> bool:
    paths = os.path.expanduser(first), os.path.expanduser(second)
    return all(map(os.path.exists, paths)) and os.path.samefile(*paths)


def layered(*layers: Mapping[str, Any]) -> dict[str, Any]:
    """Flat settings values of which later ones win. A share of conflict does not outlast the data it was given for,
    and of published weights and a file of weights the later one is meant.

    >>> layered({"data": "coloured-digits", "conflict": 0.01, "epochs": 9}, {"data": "bar"})
    {'data': 'bar', 'epochs': 9}
    >>> layered({"model": "resnet50", "pretrained": True}, {"weights": "own.pth"})
    {'model': 'resnet50', 'weights': 'own.pth'}
    """
    values: dict[str, Any] = {}
    for layer in layers:
        if "data" in layer and not takes_conflict(layer["data"]):
            values.pop("conflict", None)
        for key, other in (("weights", "pretrained"), ("pretrained", "weights")):
            if layer.get(key):
                values.pop(other, None)
        values |= layer
    return values
