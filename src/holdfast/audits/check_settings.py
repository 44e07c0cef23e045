"""Which checks an audit runs, and their settings, from the registry alone: ``--checks``, ``--set attacks.images=10``.

Imports no torch, so that a mistyped name is refused at once.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import Field, fields
from typing import Any, get_args, get_origin, get_type_hints

import yaml

from holdfast.errors import HoldfastError, require, require_known
from holdfast.parts import CHECKS
from holdfast.settings.fields import convert
from holdfast.settings.yaml_files import parse_yaml


def chosen_checks(names: Sequence[str] | None) -> list[str]:
    """The names of checks in the order they are measured, each once; None is all. An unknown one is refused."""
    chosen = None if names is None else CHECKS.names_of(names)
    return [name for name in CHECKS if chosen is None or name in chosen]


def command_settings(check: str) -> dict[str, Field[Any]]:
    return {f.name: f for f in fields(CHECKS[check].made) if not f.metadata.get("python_only")}


def make_checks(given: Mapping[str, Mapping[str, Any] | Any]) -> dict[str, Any]:
    """Every check with its settings: what is given, as a mapping or as the check itself, defaults for the others."""
    given = {CHECKS[name].name: own for name, own in given.items()}
    made = {}
    for name, part in CHECKS.items():
        own = given.get(name, {})
        if isinstance(own, Mapping):
            known = [f.name for f in fields(part.made)]
            for key in own:
                require_known("setting", f"{name}.{key}", [f"{name}.{other}" for other in known])
            own = part.made(**own)
        made[name] = own
    return made


def parse_settings(texts: Iterable[str]) -> dict[str, dict[str, Any]]:
    """Settings by check, only those that were given; a check refuses values that it cannot work with.

    >>> parse_settings(["attacks.radii=0.01,0.02", "attacks.norm=l2", "curvature.ggn=true"])
    {'attacks': {'radii': (0.01, 0.02), 'norm': 'l2'}, 'curvature': {'ggn': True}}
    """
    given: dict[str, dict[str, Any]] = {}
    for text in texts:
        key, equals, value = (part.strip() for part in text.partition("="))
        check, dot, name = key.partition(".")
        require(bool(equals and dot and name and value), f"{text!r} sets nothing; write CHECK.SETTING=VALUE")
        check, name = CHECKS[check].name, name.replace("-", "_")
        key = f"{check}.{name}"
        known = command_settings(check)
        require(bool(known), f"the check {check} has no settings; leave {text!r} out")
        require_known("setting", key, [f"{check}.{other}" for other in known])
        own = given.setdefault(check, {})
        require(name not in own, f"{key} is set twice; give it once")
        kind = _without_none(get_type_hints(CHECKS[check].made)[name])
        own[name] = convert(_read(value, kind, text), kind, key)
        CHECKS[check].made(**own)
    return given


def _without_none(kind: Any) -> Any:
    kinds = [k for k in get_args(kind) if k is not type(None)]
    return kinds[0] if len(kinds) == 1 and type(None) in get_args(kind) else kind


def _read(value: str, kind: Any, text: str) -> Any:
    several = get_origin(kind) is tuple
    try:
        return parse_yaml(f"[{value.removeprefix('[').removesuffix(']')}]" if several else value)
    except yaml.YAMLError:
        raise HoldfastError(f"cannot read the value of {text!r}; write CHECK.SETTING=VALUE,VALUE") from None
