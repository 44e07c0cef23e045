"""Types of settings that need not be given: the help of a command says nothing where there is nothing to say."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, TypeVar, get_args

from tyro.conf import arg

T = TypeVar("T")


def default_hint(label: str) -> str:
    """What help says of a default; where it is None or empty, the words of the setting say what happens.

    >>> default_hint("0.1"), default_hint("None")
    ('(default: 0.1)', '')
    """
    return "" if label in ("None", "") else f"(default: {label})"


if TYPE_CHECKING:
    Unset = Annotated[T | None, None]
    """``Unset[int]`` is an int or None."""
else:

    class Unset:
        """``Unset[int]`` is an int or None; help shows it as INT, for None is what leaving it out is for."""

        def __class_getitem__(cls, kind: Any) -> Any:
            choices = get_args(kind)
            metavar = f"{{{','.join(choices)}}}" if choices else kind.__name__.upper()
            return Annotated[kind | None, arg(help_behavior_hint=default_hint, metavar=metavar)]


Several = Annotated[tuple[T, ...], arg(help_behavior_hint=default_hint)]
"""``Several[str]`` is any number of strings, also none."""
