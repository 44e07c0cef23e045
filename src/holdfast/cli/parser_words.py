"""What the parser, tyro, does not do by itself. Open this file when a flag takes too much or too little, or where a
line of --help breaks in the wrong place.

Flags that take several values, or need none: ``--against A B`` and ``--against A --against B`` mean the same in
every command, and so do ``--compile`` and ``--compile on``. The parser keeps only the last of repeated flags, and
asks for a value. So words are put in order before it sees them, by what the options class declares.

Help: paragraphs as wide as the terminal, each option's text in one piece.
"""

from __future__ import annotations

import re
import shutil
import textwrap
from collections.abc import Iterator, Sequence
from dataclasses import fields, is_dataclass
from functools import lru_cache
from typing import Annotated, Any, get_args, get_origin, get_type_hints

from tyro.conf import OmitArgPrefixes, Positional

from holdfast.settings.fields import KEY_VALUE, Switch

NUMBER = re.compile(r"-\.?\d")
"""What looks like a flag and is a negative number."""


def list_flags(kind: Any) -> dict[str, bool]:
    """The list-valued flags that an options class declares, and whether each takes KEY=VALUE words alone.

    >>> from holdfast.cli.compare import CompareOptions
    >>> list_flags(CompareOptions)
    {'--methods': False, '--recipes': False, '--vary': True, '--grid': True, '--only': False}
    """
    return {
        flag: KEY_VALUE in marks
        for flag, own, marks in _flags(kind)
        if get_origin(own) is tuple and get_args(own)[-1] is Ellipsis and Positional not in marks
    }


def switched(kind: Any, words: Sequence[str]) -> list[str]:
    """Words in which every flag that is on, off or auto has a value: ``--compile`` is on, ``--no-compile`` off.

    >>> from holdfast.settings.training import LoopSettings
    >>> switched(LoopSettings, ["--compile", "--seed", "3", "--no-channels-last", "--capture", "auto"])
    ['--compile', 'on', '--seed', '3', '--channels-last', 'off', '--capture', 'auto']
    """
    known = {flag for flag, own, _ in _flags(kind) if own == Switch}
    made: list[str] = []
    for word, following in zip(words, [*words, "--"][1:], strict=True):
        plain = word.replace("_", "-")
        if "--" + plain.removeprefix("--no-") in known:
            made += ["--" + plain.removeprefix("--no-"), "off"]
        else:
            made += [word, "on"] if plain in known and _is_flag(following) else [word]
    return made


def _flags(kind: Any, prefix: str = "") -> Iterator[tuple[str, Any, tuple[Any, ...]]]:
    """Flag, plain type and marks of every setting of an options class, those of groups too."""
    for name, own, marks in _declared(kind):
        renamed = [mark.name for mark in marks if getattr(mark, "name", None)]
        flag = prefix + (renamed[-1] if renamed else name.replace("_", "-"))
        if is_dataclass(own):
            yield from _flags(own, prefix if OmitArgPrefixes in marks else f"{flag}.")
        else:
            yield f"--{flag}", own, marks


def joined(kind: Any, words: Sequence[str]) -> list[str]:
    """Words with the values of each list-valued flag behind its first occurrence.

    A word without = behind a flag that takes KEY=VALUE is not its value: it goes to the front, where a command takes
    an argument without a flag.

    >>> from holdfast.cli.audit import AuditOptions
    >>> joined(AuditOptions, ["--against", "a", "--fail-under", "ece=1", "runs/x", "--against=b"])
    ['runs/x', '--against', 'a', 'b', '--fail-under', 'ece=1']
    """
    kept: list[tuple[str, list[str]]] = []
    loose: list[str] = []
    known = list_flags(kind)
    has_argument = any(Positional in marks for _, _, marks in _declared(kind))
    for flag, values in _parted(known, words):
        if has_argument and known.get(flag):
            loose += [word for word in values[1:] if "=" not in word]
            values = values[:1] + [word for word in values[1:] if "=" in word]
        earlier = next((own for name, own in kept if name == flag), None) if flag in known else None
        if earlier is None:
            kept.append((flag, values))
        else:
            earlier += values
    given = [word for flag, values in kept for word in ([flag] if flag in known else []) + values]
    first = next((i for i, word in enumerate(given) if _is_flag(word)), len(given))
    return [*given[:first], *loose, *given[first:]]


def swallowed(kind: Any, words: Sequence[str], missing: str) -> str:
    """What to say where an argument is missing that a list-valued flag may have taken; empty where none has.

    >>> from holdfast.cli.audit import AuditOptions
    >>> swallowed(AuditOptions, ["--checks", "accuracy", "runs/x"], "MODEL")
    "--checks took 'accuracy' and 'runs/x', as a list takes every word up to the next option; put MODEL first"
    """
    known = list_flags(kind)
    taken = [(flag, values) for flag, values in _parted(known, joined(kind, words)) if flag in known and values]
    if not taken:
        return ""
    flag, values = max(taken, key=lambda one: len(one[1]) > 1)
    told = " and ".join(filter(None, [", ".join(map(repr, values[:-1])), repr(values[-1])]))
    return f"{flag} took {told}, as a list takes every word up to the next option; put {missing} first"


def _declared(kind: Any) -> Iterator[tuple[str, Any, tuple[Any, ...]]]:
    """Name, plain type and marks of every field of an options class."""
    hints = get_type_hints(kind, include_extras=True)
    for f in fields(kind):
        hint = hints[f.name]
        own, *marks = get_args(hint) if get_origin(hint) is Annotated else (hint,)
        yield f.name, own, tuple(marks)


def _parted(known: dict[str, bool], words: Sequence[str]) -> Iterator[tuple[str, list[str]]]:
    """(Flag, its values) of what is list-valued; ("", [word]) of everything else."""
    rest = list(words)
    while rest:
        word = rest.pop(0)
        name, equals, value = word.partition("=")
        flag = name.replace("_", "-") if name.startswith("--") else ""
        if flag not in known:
            yield "", [word]
            continue
        values = [value] if equals else []
        while rest and not _is_flag(rest[0]):
            values.append(rest.pop(0))
        yield flag, values


def _is_flag(word: str) -> bool:
    return len(word) > 1 and word.startswith("-") and not NUMBER.match(word)


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
