"""What checks may be told on the command line: ``--set attacks.images=10000``."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping
from typing import Any, Final, Literal, get_origin

import yaml

from holdfast.attacks import PRESETS
from holdfast.audits.checking import CHECKS
from holdfast.audits.checks.ood import SCORES
from holdfast.errors import HoldfastError, require, unknown
from holdfast.settings.fields import convert

SETTINGS: Final[Mapping[str, Mapping[str, Any]]] = {
    "slices": {"level": float},
    "corruptions": {
        "images": int,
        "strengths": tuple[float, ...],
        "nineteen": bool,
        "severities": tuple[int, ...],
        "official": str,
        "frost_folder": str,
    },
    "attacks": {
        "images": int,
        "radii": tuple[float, ...],
        "norm": Literal["linf", "l2"],
        "presets": tuple[str, ...],
        "black_box": bool,
        "surrogate": str,
    },
    "ood": {"images": int, "data": dict[str, str], "scores": tuple[str, ...]},
    "curvature": {"images": int, "ggn": bool},
    "saliency": {"images": int},
}
"""What each check takes, as its function is called with it; ``surrogate`` names a model as MODEL does."""

CHOICES: Final[Mapping[str, Collection[Any]]] = {"presets": PRESETS, "scores": SCORES, "severities": range(1, 6)}


def parse_settings(texts: Iterable[str]) -> dict[str, dict[str, Any]]:
    """Settings by check, only those that were given.

    >>> parse_settings(["attacks.radii=0.01,0.02", "attacks.norm=l2", "curvature.ggn=true"])
    {'attacks': {'radii': (0.01, 0.02), 'norm': 'l2'}, 'curvature': {'ggn': True}}
    """
    given: dict[str, dict[str, Any]] = {}
    for text in texts:
        key, equals, value = (part.strip() for part in text.partition("="))
        check, dot, name = key.partition(".")
        require(bool(equals and dot and name and value), f"{text!r} sets nothing; write CHECK.SETTING=VALUE")
        if check not in CHECKS:
            raise unknown("check", check, CHECKS)
        known = SETTINGS.get(check, {})
        require(bool(known), f"the check {check} has no settings; leave {text!r} out")
        if name not in known:
            raise unknown("setting", key, [f"{check}.{other}" for other in known])
        own = given.setdefault(check, {})
        require(name not in own, f"{key} is set twice; give it once")
        own[name] = convert(_read(value, known[name], text), known[name], key)
        _check(key, name, own[name])
    return given


def _check(key: str, name: str, value: Any) -> None:
    """What the check itself would refuse, but only after others have run."""
    if name == "images":
        require(value >= 1, f"{key} must be >= 1, got {value}")
    if name in ("radii", "strengths"):
        sound = len(value) > 0 and all(0 < one < math.inf for one in value)
        require(sound, f"{key} must be finite numbers > 0, got {list(value)}")
    for one in value if name in CHOICES else ():
        if one not in CHOICES[name]:
            raise unknown(key, str(one), map(str, CHOICES[name]))
    if name == "level":
        require(0 < value < 1, f"{key} must be in (0, 1), got {value}")


def _read(value: str, kind: Any, text: str) -> Any:
    several = get_origin(kind) is tuple
    try:
        return yaml.safe_load(f"[{value.removeprefix('[').removesuffix(']')}]" if several else value)
    except yaml.YAMLError:
        raise HoldfastError(f"cannot read the value of {text!r}; write CHECK.SETTING=VALUE,VALUE") from None
