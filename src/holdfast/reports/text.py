"""Numbers and names as they appear in every rendering. Open it to change how a unit is written."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import Any

from holdfast.types import Measure, Unit

SHARE = Measure("share", "share")
DIFFERENCE = Measure("difference", "difference", Unit.POINTS)
P_VALUE = Measure("p", "p", Unit.P_VALUE)
PLAIN = Measure("number", "number", Unit.NUMBER)
"""What a number is that has no measure of its own, such as an adjusted p-value in the evidence."""
EXACT = Measure("exact", "exact", Unit.NUMBER, digits=4)
"""What a gate judges: written as thresholds are, and more finely."""


def finite(value: object) -> float | None:
    """The number, or None where there is none to show."""
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return None
    return value if abs(value) <= sys.float_info.max else None  # nor is a whole number that no float holds


def missing(n: int) -> str:
    """What stands in place of a number that is not there. n: the samples it would rest on."""
    return "not finite" if n else "empty"


def sure(confidence: object) -> str:
    """How sure a model was, from its evidence; empty where that is not a number."""
    share = finite(confidence)
    return "" if share is None else f"{percent(share)} % sure"


def records(value: object) -> list[Mapping[str, Any]]:
    """The mappings in a list of some evidence; none where it is something else."""
    return [one for one in value if isinstance(one, Mapping)] if isinstance(value, (list, tuple)) else []


def numbers(values: object, key: str) -> list[float | None]:
    """A list in some evidence, with None for what is not a number; empty where it is something else."""
    found = values.get(key) if isinstance(values, Mapping) else None
    return [finite(v) for v in found] if isinstance(found, (list, tuple)) else []


def pairs(values: object, x: str, y: str) -> list[tuple[float, float]]:
    """The points of a curve whose two lists are under these keys of some evidence."""
    given = zip(numbers(values, x), numbers(values, y), strict=False)
    return [(a, b) for a, b in given if a is not None and b is not None]


def is_counts(matrix: object, rows: int, columns: int) -> bool:
    """Whether some evidence is a matrix of so many rows and columns, all whole numbers of samples."""
    given = matrix if isinstance(matrix, list) else []
    whole = [len(row) if isinstance(row, list) else -1 for row in given] == [columns] * rows
    return whole and all(isinstance(n, int) and n >= 0 for row in given for n in row)


def percent(value: float) -> str:
    """A share in percent, without the sign. Nothing is not less than nothing.

    >>> percent(0.7125), percent(1), percent(-0.0004)
    ('71.2', '100.0', '0.0')
    """
    text = f"{value * 100:.1f}"
    return "0.0" if text == "-0.0" else text


def number(measure: Measure, value: float) -> str:
    """A value as every rendering writes it, without its unit: one way per unit.

    >>> number(SHARE, 0.712), number(PLAIN, 0.83124), number(P_VALUE, 0.00012345)
    ('71.2', '0.8312', '0.00012')
    >>> number(EXACT, 0.69962), number(EXACT, -0.0)
    ('0.6996', '0.0000')
    >>> number(Measure("nll", "loss", Unit.NUMBER, digits=3), 0.83124), number(Measure("ok", "ok", Unit.FLAG), 1.0)
    ('0.831', 'yes')
    """
    match measure.unit:
        case Unit.PERCENT | Unit.POINTS:
            return percent(value)
        case Unit.FLAG:
            return "yes" if value else "no"
        case Unit.P_VALUE:
            return f"{value:.2g}"
        case Unit.COUNT:
            return f"{value:,.0f}"
    return f"{value:.4g}" if measure.digits is None else f"{value:z.{measure.digits}f}"


def unit(measure: Measure) -> str:
    """The unit as it stands behind a number; empty where it has none."""
    return {Unit.PERCENT: "%", Unit.POINTS: "points", Unit.SECONDS: "s"}.get(measure.unit, "")


def titled(measure: Measure) -> str:
    """A measure's title as the head of a column whose numbers stand without their unit.

    >>> titled(Measure("ece", "calibration error")), titled(PLAIN)
    ('calibration error, %', 'number')
    """
    return f"{measure.title}, {unit(measure)}" if unit(measure) else measure.title


def quantity(measure: Measure, value: float) -> str:
    """A value with its unit.

    >>> quantity(SHARE, 0.712), quantity(DIFFERENCE, -0.0712), quantity(PLAIN, 11.93182)
    ('71.2 %', '-7.1 points', '11.93')
    """
    return f"{number(measure, value)} {unit(measure)}".rstrip()


def bounds(low: float | None, high: float | None, measure: Measure = SHARE) -> str:
    """An interval without its unit; empty where there is none.

    >>> bounds(0.5, 0.75), bounds(0.5, None)
    ('50.0 to 75.0', '')
    """
    low, high = finite(low), finite(high)
    return "" if low is None or high is None else f"{number(measure, low)} to {number(measure, high)}"


def interval(measure: Measure, low: float | None, high: float | None) -> str:
    """The same with its unit.

    >>> interval(SHARE, 0.5, 0.75), interval(PLAIN, 0.5, None)
    ('50.0 to 75.0 %', '')
    """
    span = bounds(low, high, measure)
    return span and f"{span} {unit(measure)}".rstrip()


def measure_id(check: str, name: str) -> str:
    """The anchor at which a page says what a measure is: letters, digits and dashes alone, whatever a check is called.

    >>> measure_id("accuracy", "top_5_accuracy")
    'm-accuracy-top-5-accuracy'
    """
    return "m-" + "".join(c if c.isascii() and c.isalnum() else "-" for c in f"{check}-{name}")


def part(where: Mapping[str, str]) -> str:
    """The part of the data a finding speaks of.

    >>> part({}), part({"class": "3"}), part({"bias": "aligned"}), part({"slice": "class 3, cluster 1"})
    ('all', 'class 3', 'bias-aligned', 'class 3, cluster 1')
    """
    before = {"bias": "bias-", "slice": ""}
    return ", ".join(before.get(k, f"{k} ") + v for k, v in where.items()) or "all"


def setting(value: Any) -> str:
    """A setting as a person would write it.

    >>> setting(None), setting(True), setting([1, 2]), setting(1e-4)
    ('none', 'yes', '1, 2', '0.0001')
    """
    if value is None:
        return "none"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, (list, tuple)):
        return ", ".join(setting(v) for v in value) or "none"
    if isinstance(value, Mapping):
        return ", ".join(f"{k} {setting(v)}" for k, v in value.items()) or "none"
    return str(value)
