"""Names from outside, made safe to print."""

from __future__ import annotations

import os


def printable(name: str | os.PathLike[str]) -> str:
    r"""A name with control characters and undecodable bytes escaped.

    File names may hold anything: a terminal escape, a line break, bytes that are no UTF-8 and would stop
    ``print`` with an exception of its own.

    >>> print(printable("red\x1b[31m\n.png"), printable("caf\udce9"), printable("café au lait"))
    red\x1b[31m\n.png caf\udce9 café au lait
    """
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in os.fspath(name))
