"""What ``holdfast tune`` searches: ranges and choices of settings, given or derived from what the parts declare.

Open this file to change how a space is written, or what is searched where none is given.
"""

from __future__ import annotations

import math
import typing
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any

from holdfast.comparisons.plans import changed
from holdfast.errors import HoldfastError, require
from holdfast.settings.fields import Choice, Within
from holdfast.settings.training import TrainSettings
from holdfast.settings.yaml_files import parse_yaml

FORM = "write SETTING=LOW..HIGH, SETTING=LOW..HIGH:log or SETTING=VALUE,VALUE"
AROUND = 4.0
"""A setting without an upper bound is searched from its value divided by this to its value times this."""


@dataclass(frozen=True)
class Interval:
    """Numbers from low to high, both included. log: evenly over their logarithms. whole: integers only."""

    low: float
    high: float
    log: bool = False
    whole: bool = False

    def __str__(self) -> str:
        return f"{self.low:g}..{self.high:g}" + ":log" * self.log


Space = Mapping[str, Interval | tuple[Any, ...]]
"""What each setting may be: numbers of an interval, or one of several values."""


def parse_space(texts: Iterable[str]) -> dict[str, Interval | tuple[Any, ...]]:
    """A space as it is written on the command line.

    >>> {name: str(own) for name, own in parse_space(["lr=1e-4..0.1:log", "batch_size=32,64"]).items()}
    {'lr': '0.0001..0.1:log', 'batch_size': '(32, 64)'}
    """
    made: dict[str, Interval | tuple[Any, ...]] = {}
    for text in texts:
        name, equals, given = (part.strip() for part in text.partition("="))
        require(bool(name and equals and given), f"{text!r} names no values; {FORM}")
        require(name not in made, f"{name} is given twice; put all of it into one")
        if ".." in given:
            span, _, scale = given.partition(":")
            ends = [parse_yaml(end) for end in span.split("..")]
            require(len(ends) == 2 and scale in ("", "log"), f"cannot read the range {text!r}; {FORM}")
            made[name] = interval(name, ends[0], ends[1], log=scale == "log")
        else:
            made[name] = tuple(parse_yaml(f"[{given}]"))
    return made


def given_space(space: Mapping[str, Any]) -> dict[str, Interval | tuple[Any, ...]]:
    """A space as Python has it: ``(low, high)`` or ``(low, high, "log")`` for a range, a list for choices."""
    made: dict[str, Interval | tuple[Any, ...]] = {}
    for name, own in space.items():
        if isinstance(own, Interval):
            made[name] = own
        elif isinstance(own, tuple):
            fits = len(own) in (2, 3) and own[2:] in ((), ("log",))
            require(fits, f'{name} must be (low, high), (low, high, "log") or a list of choices, got {own!r}')
            made[name] = interval(name, own[0], own[1], log=len(own) == 3)
        else:
            listed = isinstance(own, Sequence) and not isinstance(own, str) and len(own) > 0
            require(listed, f'{name} must be (low, high), (low, high, "log") or a list of choices, got {own!r}')
            made[name] = tuple(own)
    return made


def interval(name: str, low: Any, high: Any, *, log: bool) -> Interval:
    try:
        ends = float(low), float(high)
    except (TypeError, ValueError):
        raise HoldfastError(f"the range of {name} must be of numbers, got {low!r} to {high!r}; {FORM}") from None
    require(all(map(math.isfinite, ends)), f"the range of {name} must be finite, got {low} to {high}")
    require(ends[0] < ends[1], f"the range of {name} must rise, got {low} to {high}; swap them")
    lost = f"a logarithmic range starts above 0, and that of {name} at {low}"
    require(not log or ends[0] > 0, f"{lost}; raise it, or leave :log out")
    return Interval(*ends, log=log, whole=isinstance(low, int) and isinstance(high, int))


def default_space(settings: TrainSettings) -> dict[str, Interval | tuple[Any, ...]]:
    """Learning rate and weight decay of the optimiser, and the numbers that the method and the ascent declare.

    settings: with nothing left open.

    >>> from holdfast.settings import build
    >>> [f"{name}={own}" for name, own in default_space(build(TrainSettings, {"lr": 0.05})).items()]
    ['lr=0.005..0.5:log', 'weight_decay=1e-05..0.01:log']
    """
    rate = settings.optimizer.lr
    made: dict[str, Interval | tuple[Any, ...]] = {
        "lr": Interval(rate / 10, rate * 10, log=True),
        "weight_decay": Interval(1e-5, 1e-2, log=True),
    }
    for kind, choice in (("method", settings.method), ("ascent", settings.ascent)):
        made |= {f"{kind}.{name}": own for name, own in _numbers(choice).items()}
    return made


def _numbers(choice: Choice) -> dict[str, Interval]:
    """A range around each number of a part, within the bounds that it declares."""
    hints, made = typing.get_type_hints(type(choice), include_extras=True), {}
    for field in fields(choice):
        value, kind = getattr(choice, field.name), hints[field.name]
        bounds = next((own for own in getattr(kind, "__metadata__", ()) if isinstance(own, Within)), Within(-math.inf))
        if isinstance(value, bool) or not isinstance(value, (int, float)) or value <= 0:
            continue
        whole = isinstance(value, int)
        if math.isfinite(bounds.low) and bounds.high <= 1 and not whole:
            margin = (bounds.high - bounds.low) / 20  # open ends are not values
            low, high = (
                end + margin * sign if edge in "()" else end
                for end, edge, sign in ((bounds.low, bounds.ends[0], 1), (bounds.high, bounds.ends[1], -1))
            )
            made[field.name] = Interval(low, high)
        else:
            low, high = max(bounds.low, value / AROUND), min(bounds.high, value * AROUND)
            low, high = (max(1, round(low)), round(high)) if whole else (low, high)
            if low < high and low > 0:
                made[field.name] = Interval(low, high, log=True, whole=whole)
    return made


def check_space(settings: TrainSettings, space: Space) -> None:
    """Refuse, before anything runs, settings that are not there and values that they cannot have."""
    require(len(space) > 0, f"nothing to search; {FORM}")
    for name, own in space.items():
        kept = ("data", "val", "data_seed", "seed", "labels", "select", "device")
        require(name not in kept, f"{name} cannot be searched: trials would not be comparable; leave it out")
        for value in (own.low, own.high) if isinstance(own, Interval) else own:
            changed(settings, name, int(value) if isinstance(own, Interval) and own.whole else value)


def suggested(trial: Any, settings: TrainSettings, space: Space) -> TrainSettings:
    """Settings with what an Optuna trial proposes."""
    for name, own in space.items():
        if not isinstance(own, Interval):
            value = own[trial.suggest_categorical(name, list(range(len(own))))]  # by number: Optuna takes no lists
        elif own.whole:
            value = trial.suggest_int(name, int(own.low), int(own.high), log=own.log)
        else:
            value = trial.suggest_float(name, own.low, own.high, log=own.log)
        settings = changed(settings, name, value)
    return settings


def shown_values(params: Mapping[str, Any], space: Space) -> dict[str, Any]:
    """What a trial proposed, as values of settings.

    >>> shown_values({"batch_size": 1}, {"batch_size": (32, 64)})
    {'batch_size': 64}
    """
    return {name: own[params[name]] if isinstance(own := space[name], tuple) else params[name]
            for name in params if name in space}  # fmt: skip
