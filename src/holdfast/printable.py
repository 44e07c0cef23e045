"""Names and messages from outside, made safe to print: the one escaper for terminal, files and pages. Imports fast."""

from __future__ import annotations

import os
import unicodedata

JOINERS = "\u200c\u200d"
"""Invisible, but letters of several scripts and many emoji need them."""
UNSAFE = frozenset({"Cc", "Cf", "Cs", "Zl", "Zp"})
"""Control and format characters, lone surrogates, line and paragraph separators."""


def printable(text: str | os.PathLike[str], *, keep: str = "") -> str:
    r"""Text in which nothing can steer a terminal or turn the reading direction: such characters are escaped.

    File names may hold anything: a terminal escape, a line break, bytes that are not UTF-8 and would stop ``print``.
    keep: characters that stay as they are, such as a line break.

    >>> print(printable("red\x1b[31m\n.png"), printable("caf\udce9"), printable("café au lait"))
    red\x1b[31m\n.png caf\udce9 café au lait
    """
    text = os.fspath(text)
    if text.isprintable():
        return text
    escaped = {c for c in text if unicodedata.category(c) in UNSAFE} - {*JOINERS, *keep}
    return "".join(c.encode("unicode_escape").decode("ascii") if c in escaped else c for c in text)


def one_line(text: str) -> str:
    r"""The same on one line: breaks and tabs become spaces.

    >>> one_line("cat\x1b[31m\n\u202edog")
    'cat\\x1b[31m \\u202edog'
    """
    return printable(text if text.isprintable() else text.translate(BREAKS))


BREAKS = str.maketrans("\t\n\r", "   ")
