"""Where the marks of an axis stand, and what is written at them."""

from __future__ import annotations

import math


def linear_ticks(low: float, high: float, *, most: int = 6, whole: bool = False) -> list[float]:
    """Round numbers from low to high: at most ``most``, steps of 1, 2 or 5 times a power of ten.

    >>> linear_ticks(0, 1)
    [0.0, 0.2, 0.4, 0.6, 0.8, 1.0]
    >>> linear_ticks(1, 3, whole=True)
    [1.0, 2.0, 3.0]
    """
    if high <= low:
        return [float(low)]
    power = math.floor(math.log10((high - low) / most))
    for step in (m * 10.0**p for p in (power, power + 1) for m in (1, 2, 5) if not whole or m * 10.0**p >= 1):
        first, last = math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9)
        if last - first < most:
            return [_exact(i * step, step) for i in range(first, last + 1)]
    return [float(low), float(high)]


def log_ticks(low: float, high: float, *, most: int = 6) -> list[float]:
    """Powers of ten from low to high, with their double and fivefold where there is room.

    >>> log_ticks(0.01, 1)
    [0.01, 0.1, 1.0]
    >>> log_ticks(0.15, 2)
    [0.2, 0.5, 1.0, 2.0]
    """
    powers = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    for factors in ((1, 2, 5), (1,)):
        ticks = [_exact(f * 10.0**p, 10.0**p) for p in powers for f in factors]
        ticks = [t for t in ticks if low * (1 - 1e-9) <= t <= high * (1 + 1e-9)]
        if len(ticks) <= most:
            return ticks
    return ticks[:: math.ceil(len(ticks) / most)]


def tick_text(value: float) -> str:
    """A mark's number, as short as it is exact.

    >>> tick_text(0.2), tick_text(20.0), tick_text(1e-05), tick_text(200000.0)
    ('0.2', '20', '1e-05', '200,000')
    """
    return f"{value:,.0f}" if value == round(value) and abs(value) < 1e9 else f"{value:g}"


def _exact(value: float, step: float) -> float:
    """0.6000000000000001 is 0.6, in steps of 0.2."""
    return round(value, -math.floor(math.log10(step) + 1e-9))
