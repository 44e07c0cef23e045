"""Names and numbers as they appear in every rendering."""

from __future__ import annotations

import math
import unicodedata
from collections.abc import Mapping
from typing import Any

PERCENT = frozenset(
    {
        "accuracy",
        "balanced-accuracy",
        "corruption-error",
        "drop",
        "ece",
        "ece-adaptive",
        "error",
        "gap",
        "harmonic-mean",
        "mean-corruption-error",
        "top-5-accuracy",
        "worst-group",
    }
)
"""Findings whose value is a share: shown in percent. The others are shown as they are."""

JOINERS = "\u200c\u200d"
"""Invisible, but letters of several scripts and many emoji need them."""


def plain(text: str) -> str:
    r"""Text on one line that cannot steer a terminal or turn the reading direction.

    >>> plain("cat\x1b[31m\n\u202edog")
    'cat\\x1b[31m \\u202edog'
    """
    return "".join(_plain(c) for c in text)


def _plain(character: str) -> str:
    if character in "\t\n\r":
        return " "
    if unicodedata.category(character) in ("Cc", "Cf", "Cs", "Zl", "Zp") and character not in JOINERS:
        return character.encode("unicode_escape").decode("ascii")
    return character


def finite(value: float | None) -> float | None:
    """The number, or None where there is none to show."""
    return value if value is not None and math.isfinite(value) else None


def percent(value: float) -> str:
    """A share in percent, without the sign.

    >>> percent(0.7125), percent(1)
    ('71.2', '100.0')
    """
    return f"{value * 100:.1f}"


def quantity(name: str, value: float) -> str:
    """The value of a finding with its unit.

    >>> quantity("accuracy", 0.712), quantity("nll", 0.83124)
    ('71.2 %', '0.8312')
    """
    return f"{percent(value)} %" if name in PERCENT else f"{value:.4g}"


def part(where: Mapping[str, str]) -> str:
    """The part of the data a finding speaks of.

    >>> part({}), part({"class": "3"}), part({"bias": "aligned"})
    ('all', 'class 3', 'aligned')
    """
    return ", ".join(v if k == "bias" else f"{k} {v}" for k, v in where.items()) or "all"


def setting(value: Any) -> str:
    """A setting as a person would write it.

    >>> setting(None), setting(True), setting([1, 2]), setting(1e-4)
    ('none', 'yes', '1, 2', '0.0001')
    """
    if value is None:
        return "none"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, (list, tuple)):
        return ", ".join(setting(v) for v in value) or "none"
    if isinstance(value, Mapping):
        return ", ".join(f"{k} {setting(v)}" for k, v in value.items()) or "none"
    return str(value)
