"""What the terminal and the shell ask of every command."""

from __future__ import annotations

import io
import os
import shutil
import sys
from collections.abc import Iterator
from contextlib import contextmanager

NARROWEST = 40
"""Columns below which help is not laid out: tyro takes minutes and gigabytes to break words into single letters."""
READER_LEFT = 128 + 13
"""Exit code of what SIGPIPE ends."""


@contextmanager
def terminal() -> Iterator[None]:
    """Streams that take any text, and a width that text can be laid out in.

    At the end, what a stream cannot take (its reader has left, the disk is full) is dropped: Python would complain of
    it once more at exit.
    """
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")  # a locale without UTF-8 must not end a command
    columns = os.environ.get("COLUMNS")
    if shutil.get_terminal_size().columns < NARROWEST:
        os.environ["COLUMNS"] = str(NARROWEST)
    try:
        yield
    finally:
        os.environ.pop("COLUMNS", None)
        if columns is not None:
            os.environ["COLUMNS"] = columns
        for stream in (sys.stdout, sys.stderr):
            try:
                stream.flush()
            except OSError:
                os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())


def may_colour() -> bool:
    """Whether both streams show colours and nobody said no; tyro looks at standard output alone."""
    return not os.environ.get("NO_COLOR") and sys.stdout.isatty() and sys.stderr.isatty()


def reader_left(error: BaseException) -> bool:
    """Whether the reader of our output, such as head, has gone; rich then ends with a code of its own."""
    return isinstance(error if isinstance(error, OSError) else error.__context__, BrokenPipeError)
