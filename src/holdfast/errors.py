"""What ends a command early, and the hints that go into its message."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from contextlib import contextmanager
from difflib import get_close_matches

MANY = 24
"""More names than that are not put into a message."""


class HoldfastError(Exception):
    """Bad input: the message names the value and the remedy. The command line exits with 2."""


class Interrupted(KeyboardInterrupt):
    """A signal ended the work. Like Ctrl-C it is no Exception, so that nothing takes it for a crash.

    message: how far it came. remedy: how to go on, where something was kept for that.
    """

    def __init__(self, signum: int, message: str = "interrupted", *, remedy: str = "") -> None:
        super().__init__("; ".join(filter(None, (message, remedy))))
        self.signum, self.message, self.remedy = signum, message, remedy


def unknown(kind: str, name: object, known: Iterable[str], *, listed_by: str = "") -> HoldfastError:
    """The error for a name that is not among the known ones. listed_by: the command that shows them, if there is one.

    >>> str(unknown("method", "lfff", ["erm", "lff", "jtt"]))
    "unknown method 'lfff'; did you mean 'lff'?"
    >>> str(unknown("method", "zzz", ["erm", "lff"]))
    "unknown method 'zzz'; known: erm, lff"
    """
    names = list(known)
    close = get_close_matches(name, names, n=3, cutoff=0.5) if isinstance(name, str) else []
    if close:
        hint = "did you mean " + " or ".join(repr(c) for c in close) + "?"
    elif len(names) > MANY and listed_by:
        hint = f"'{listed_by}' lists the {len(names)} that are known"
    elif len(names) > MANY:
        hint = f"{len(names)} are known: {', '.join(names[:8])}, ..."
    else:
        hint = "known: " + ", ".join(names)
    return HoldfastError(f"unknown {kind} {brief(name)}; {cut(hint, 600)}")


def brief(value: object, most: int = 200) -> str:
    """A value from outside as a message shows it: cut off where it is long.

    >>> brief("lff"), brief([1, 2, 3], most=5), brief(16**5000)
    ("'lff'", '[1, 2...', 'an int with too many digits to show')
    """
    try:
        text = repr(value)
    except ValueError:  # Python does not write out numbers of thousands of digits
        return f"an {type(value).__name__} with too many digits to show"
    return cut(text, most)


def cut(text: str, most: int = 300) -> str:
    """Text that fits a message."""
    return text if len(text) <= most else f"{text[:most]}..."


def require_known(kind: str, name: object, known: Collection[str], *, listed_by: str = "") -> None:
    """Refuse a name that is not among the known ones, as :func:`unknown` says it."""
    if name not in known:
        raise unknown(kind, name, known, listed_by=listed_by)


def require(condition: bool, message: str) -> None:
    """Raise a :class:`HoldfastError` unless the condition holds.

    >>> require(1 > 2, "epochs must be >= 1, got 0")
    Traceback (most recent call last):
    holdfast.errors.HoldfastError: epochs must be >= 1, got 0
    """
    if not condition:
        raise HoldfastError(message)


@contextmanager
def explaining(failed: str, remedy: str) -> Iterator[None]:
    """Around calls that fail in many ways: an error says what failed, the first line of the reason, and the remedy.

    >>> with explaining("cannot read a.pt", "write it again"):
    ...     raise ValueError("bad header")
    Traceback (most recent call last):
    holdfast.errors.HoldfastError: cannot read a.pt: bad header; write it again
    """
    try:
        yield
    except HoldfastError:
        raise
    except Exception as error:
        raise HoldfastError(f"{failed}: {first_line(error)}; {remedy}") from error


def first_line(error: BaseException) -> str:
    """The first line of an error's message, or its class where it has none: libraries raise bare assertions and pages.

    >>> first_line(ValueError("no such table.")), first_line(AssertionError())
    ('no such table', 'AssertionError')
    """
    return (str(error).strip().splitlines() or [type(error).__name__])[0].rstrip(".")
