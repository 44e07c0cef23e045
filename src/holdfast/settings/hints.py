"""Types of settings that need not be given: the help of a command says nothing where there is nothing to say."""

from __future__ import annotations

from typing import Annotated, TypeVar

from tyro.conf import arg

T = TypeVar("T")


def default_hint(label: str) -> str:
    """What help says of a default; where it is None or empty, the words of the setting say what happens.

    >>> default_hint("0.1"), default_hint("None")
    ('(default: 0.1)', '')
    """
    return "" if label in ("None", "") else f"(default: {label})"


Unset = Annotated[T | None, arg(help_behavior_hint=default_hint)]
"""``Unset[int]`` is an int or None."""
Several = Annotated[tuple[T, ...], arg(help_behavior_hint=default_hint)]
"""``Several[str]`` is any number of strings, also none."""
