"""What ends a command early, and the hints that go into its message."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Collection, Iterable, Iterator
from contextlib import contextmanager
from difflib import get_close_matches
from functools import wraps
from typing import Any, TypeVar

from holdfast.printable import printable

MANY = 24
"""More names than that are not put into a message."""
SYNONYMS = {
    "radius": "eps epsilon max_norm perturbation",
    "step_size": "alpha eps_iter eps_step eta_step stepsize",
    "steps": "iters iterations n_iter nb_iter num_iter max_iter num_steps n_steps n_queries",
    "lr": "learning_rate lr0 base_lr initial_lr",
    "optimizer": "opt optim optimiser",
    "weight_decay": "wd l2_penalty",
    "batch_size": "bs batch_sz per_device_batch_size",
    "epochs": "max_epochs num_epochs n_epochs num_train_epochs",
    "model": "arch architecture backbone net network",
    "workers": "num_workers n_workers n_jobs",
    "seed": "random_state random_seed manual_seed",
    "image_size": "img_size input_size resolution imgsz",
    "out": "output output_dir out_dir save_dir logdir",
    "generator": "rng",
    "rho": "sam_rho neighborhood radius eps epsilon",
    "lmbda": "lambda_ lam ema momentum_m",
    "bounds": "clip_min clip_max clip_range clip_values",
    "name": "corruption corruption_name",
}
"""What people call a setting elsewhere: torchattacks, foolbox, timm, Lightning, transformers, scikit-learn."""

Function = TypeVar("Function", bound=Callable[..., Any])


class HoldfastError(Exception):
    """Bad input: the message names the value and the remedy. The command line exits with 2."""


class UnknownArgument(HoldfastError, TypeError):
    """A keyword argument that a function does not take; a TypeError as for every Python function."""


class RankEnded(HoldfastError):
    """This process ends because another rank of its training has failed or was lost.

    code: what a command exits with. reported: whether another rank says why.
    """

    def __init__(self, message: str, *, code: int, reported: bool = False) -> None:
        super().__init__(message)
        self.code, self.reported = code, reported


class Interrupted(KeyboardInterrupt):
    """A signal ended the work. Like KeyboardInterrupt it is not an Exception, so that it is not taken for a crash.

    message: how far it came. remedy: how to resume, if something was saved.
    """

    def __init__(self, signum: int, message: str = "interrupted", *, remedy: str = "") -> None:
        super().__init__("; ".join(filter(None, (message, remedy))))
        self.signum, self.message, self.remedy = signum, message, remedy


def interruption_behind(error: BaseException | None) -> KeyboardInterrupt | None:
    """The signal or Ctrl-C that an error was made of, if it was: an extension in C that is stopped while it is imported
    raises an ImportError because of it, and until Python 3.12 so does __set_name__ with an error of its own.

    >>> try:
    ...     raise ImportError("initialization failed") from Interrupted(15)
    ... except ImportError as error:
    ...     print(repr(interruption_behind(error)))
    Interrupted('interrupted')
    """
    while error is not None and not isinstance(error, KeyboardInterrupt):
        error = error.__cause__
    return error


def raise_interruption(error: Exception) -> None:
    """In an ``except Exception``: an error that a signal or Ctrl-C is behind is that, and not a failure."""
    if (stopped := interruption_behind(error)) is not None:
        raise stopped from None


def unknown(kind: str, name: object, known: Iterable[str], *, listed_by: str = "") -> HoldfastError:
    """The error for a name that is not among the known ones. listed_by: the command that shows them, if there is one.

    >>> str(unknown("method", "lfff", ["erm", "lff", "jtt"]))
    "unknown method 'lfff'; did you mean 'lff'?"
    >>> str(unknown("method", "zzz", ["erm", "lff"]))
    "unknown method 'zzz'; known: erm, lff"
    >>> str(unknown("setting", "learning_rate", ["epochs", "lr", "rate"]))
    "unknown setting 'learning_rate'; did you mean 'lr'?"
    >>> str(unknown("corruption", "blurr", ["blur", "fog", "blur"]))
    "unknown corruption 'blurr'; did you mean 'blur'?"
    """
    names = list(dict.fromkeys(known))  # parts of two scales may share a name
    shown = [*map(printable, names)]  # they may come from a file
    close = close_names(name, names) if isinstance(name, str) else []
    if close:
        hint = "did you mean " + " or ".join(repr(c) for c in close) + "?"
    elif len(names) > MANY and listed_by:
        hint = f"'{listed_by}' lists the {len(names)} that are known"
    elif len(names) > MANY:
        hint = f"{len(names)} are known: {', '.join(shown[:8])}, ..."
    else:
        hint = "known: " + ", ".join(shown)
    return HoldfastError(f"unknown {kind} {brief(name)}; {cut(hint, 600)}")


def close_names(name: str, names: Collection[str]) -> list[str]:
    """What somebody probably meant: another word for the same, or a name that is spelt much like it."""
    wanted = name.lower().replace("-", "_")
    meant = [known for known, others in SYNONYMS.items() if wanted in others.split() and known in names]
    return meant or get_close_matches(name, names, n=3, cutoff=0.5)


def plain_name(name: str) -> str:
    """A name such that case, "-", "_" and " " make no difference.

    >>> plain_name("F-SAM") == plain_name("fsam"), plain_name("Group DRO") == plain_name("group-dro")
    (True, True)
    """
    return name.lower().translate(_SEPARATORS)


_SEPARATORS = str.maketrans("", "", "-_ ")


def hinted(*more: str, kind: str = "argument") -> Callable[[Function], Function]:
    """For public functions: a keyword that they do not take is refused with the name that was probably meant.

    more: names that the function takes by ``**``; without any, a function with ``**`` judges the others itself. kind:
    what an argument of the function is called.

    >>> @hinted()
    ... def attack(x, *, radius): return x
    >>> attack(1, eps=0.1)
    Traceback (most recent call last):
    holdfast.errors.UnknownArgument: attack: unknown argument 'eps'; did you mean 'radius'?
    """

    def decorate(function: Function) -> Function:
        parameters = inspect.signature(function).parameters.values()
        takes_any = not more and any(p.kind is p.VAR_KEYWORD for p in parameters)
        named = [p.name for p in parameters if p.kind in (p.KEYWORD_ONLY, p.POSITIONAL_OR_KEYWORD)]
        known = dict.fromkeys([*named, *more])

        @wraps(function)
        def call(*args: Any, **settings: Any) -> Any:
            for name in settings:
                if name not in known and (not takes_any or _is_synonym(name, known)):
                    raise UnknownArgument(f"{function.__name__}: {unknown(kind, name, known)}")
            return function(*args, **settings)

        return call  # type: ignore[return-value]

    return decorate


def _is_synonym(name: str, known: Collection[str]) -> bool:
    return any(name in others.split() and one in known for one, others in SYNONYMS.items())


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
