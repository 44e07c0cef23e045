"""What the commands share: words to options, lines to the terminal, and what the shell asks of every command."""

from __future__ import annotations

import io
import os
import shutil
import sys
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext, redirect_stderr, suppress
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

import tyro
from tyro.conf import FlagCreatePairsOff

from holdfast.cli.parser_words import join_docstrings, joined, laid_out, switched
from holdfast.errors import HoldfastError, unknown
from holdfast.files import exists
from holdfast.printable import printable

if TYPE_CHECKING:
    from rich.console import Console

WIDE = 180
"""Columns of a table where there is no terminal that says its own."""


def parse(
    kind: Any, words: Sequence[str], name: str, doc: str | None, *, negatable: bool = False, **kwargs: Any
) -> Any:
    """Words as an options class, with the command's own first line as its help.

    negatable: --no-FLAG switches off again, which makes sense where a settings file may have switched on.
    """
    if _seen is not None:
        _seen.append(kind)
        if "return_unknown_args" not in kwargs:  # another parser takes the rest
            raise _OptionsSeen
    words = joined(kind, switched(kind, words))
    config = () if negatable else (FlagCreatePairsOff,)
    tyro._experimental_options["ansi_codes"] = may_colour()
    join_docstrings()
    doc = laid_out(doc or "")
    with nullcontext() if is_first_rank() else redirect_stderr(io.StringIO()):  # all ranks meet the same usage errors
        return tyro.cli(kind, prog=f"holdfast {name}", description=doc, args=words, config=config, **kwargs)


def is_first_rank() -> bool:
    """Whether this process speaks: of several that torchrun started, one does."""
    return os.environ.get("RANK", "0") == "0" or "WORLD_SIZE" not in os.environ


class _OptionsSeen(Exception):
    pass


_seen: list[Any] | None = None


def options_of(command: Callable[[list[str]], int]) -> list[Any]:
    """The options classes that a command parses its words into, found without running it."""
    global _seen
    found: list[Any] = []
    _seen = found
    try:
        with suppress(_OptionsSeen):
            command([])
    finally:
        _seen = None
    return found


def peek(words: Sequence[str], flag: str) -> str | None:
    """The value of a flag before anything is parsed; of several the last, as the parser takes it.

    >>> peek(["--method", "lff", "--config", "a.yaml", "--config=b.yaml"], "--config")
    'b.yaml'
    >>> peek([], "--config")
    """
    found = None
    for word, following in zip(words, [*words, None][1:], strict=True):
        if word == flag:
            found = following
        elif word.startswith(flag + "="):
            found = word.partition("=")[2]
    return found


def at_home(word: str) -> str:
    """``--out=~/runs`` as it is meant: a shell leaves that ~ alone, and a folder called ~ is a danger.

    >>> at_home("--out=~/runs") == "--out=" + at_home("~/runs") == "--out=" + os.path.expanduser("~/runs")
    True
    >>> at_home("--set=a=~/runs"), at_home("--seed=3"), at_home("a~/b")
    ('--set=a=~/runs', '--seed=3', 'a~/b')
    """
    flag, equals, value = word.partition("=") if word.startswith("--") else ("", "", word)
    return flag + equals + (os.path.expanduser(value) if value.startswith("~") else value)


def refuse_empty(words: Sequence[str]) -> None:
    """No option takes an empty value: it is a shell variable that was never set.

    >>> refuse_empty(["train", "--config", ""])
    Traceback (most recent call last):
    holdfast.errors.HoldfastError: --config is empty; give it a value or leave it out
    """
    for before, word in pairwise(["", *words]):
        flag, equals, value = word.partition("=")
        if word == "" or (flag.startswith("--") and equals and not value):
            name = flag if equals else before if before.startswith("--") else "an argument"
            raise HoldfastError(f"{name} is empty; give it a value or leave it out")


def require_data(name: str) -> None:
    """Refuse a mistyped name before torch is imported."""
    from holdfast.parts import data_by_prefix, named_data

    known = named_data()
    if name not in known and data_by_prefix(name) is None and not exists(Path(os.path.expanduser(name))):
        raise unknown("data set (and no such file or folder)", name, known)


def console() -> Console:
    """Where tables go: as wide as the terminal, or as COLUMNS says; wide where neither says anything."""
    from rich.console import Console

    found = Console()
    return found if found.is_terminal or "COLUMNS" in os.environ else Console(width=WIDE)


def say(text: str, *, stderr: bool = False) -> None:
    """Lines of results: no markup, no wrapping, nothing that could steer the terminal."""
    from rich.console import Console

    plain: dict[str, Any] = {"markup": False, "highlight": False, "emoji": False, "soft_wrap": True}
    Console(stderr=stderr).print(printable(text, keep="\n"), **plain)


def narrate(text: str, *, any_rank: bool = False) -> None:
    """A line on what happens, to stderr. any_rank: also where another process speaks for all."""
    if any_rank or is_first_rank():
        say(text, stderr=True)


@contextmanager
def plain_warnings() -> Iterator[None]:
    """Warnings of ours as one line on stderr, without the place in the code; those of others as they come."""
    package, before = Path(__file__).parents[1], warnings.showwarning

    def show(message: Warning | str, category: type[Warning], filename: str, *rest: Any) -> None:
        if Path(filename).is_relative_to(package):
            narrate(f"warning: {message}")
        elif is_first_rank():
            before(message, category, filename, *rest)

    warnings.showwarning = show  # type: ignore[assignment]
    try:
        yield
    finally:
        warnings.showwarning = before


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
