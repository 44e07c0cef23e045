"""How help is laid out: paragraphs as wide as the terminal, each option's text in one piece. Open this file where a
line of --help breaks in the wrong place."""

from __future__ import annotations

import shutil
import textwrap
from functools import lru_cache
from typing import Any

HANGING = "  "
"""Before the second line of a paragraph. The parser joins lines that begin with a letter."""


def laid_out(text: str, *, width: int | None = None) -> str:
    """A description as the parser prints it: a paragraph per line, wrapped; an indented line stays below the last.

    >>> print(laid_out("Train a model, and measure it.\\nParts:\\n  one: the first of the parts", width=20))
    Train a model, and
      measure it.
    <BLANKLINE>
    Parts:
      one: the first of
          the parts
    """
    columns = width or shutil.get_terminal_size().columns
    made: list[str] = []
    for line in filter(None, text.splitlines()):
        indent = line[: len(line) - len(line.lstrip())]
        wrapped = textwrap.fill(
            line, columns, subsequent_indent=indent + (HANGING * 2 if indent else HANGING), break_on_hyphens=False
        )
        made.append(("" if indent or not made else "\n") + wrapped)
    return "\n".join(made)


def listed(rows: dict[str, str]) -> str:
    """Names with a line about each, in two columns.

    >>> print(listed({"train": "Train.", "audit": "Measure."}))
      train  Train.
      audit  Measure.
    """
    first = max(map(len, rows)) + 4
    columns = max(shutil.get_terminal_size().columns, first + 20)
    made = textwrap.TextWrapper(columns, subsequent_indent=" " * first, break_on_hyphens=False)
    return "\n".join(made.fill(f"  {name:<{first - 2}}{about}") for name, about in rows.items())


def join_docstrings() -> None:
    """Have the parser show the docstring of an option as one paragraph, wherever its lines break in our code.

    tyro joins lines, but not those that are indented, as the second line of an attribute's docstring is.
    """
    from tyro import _docstrings

    read: Any = getattr(_docstrings, "parse_docstring_from_object", None)
    if read is None or getattr(read, "joins", False):
        return

    @lru_cache(maxsize=1024)
    def parse_docstring_from_object(obj: object) -> dict[str, str]:
        return {name: " ".join(text.split()) for name, text in read(obj).items()}

    parse_docstring_from_object.joins = True  # type: ignore[attr-defined]
    _docstrings.parse_docstring_from_object = parse_docstring_from_object
