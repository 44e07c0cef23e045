"""Charts as inline SVG, without a plotting library. Here: tags, scales, marks of an axis and text widths that all of
them share.

Colours come from the page's style: a class ``s0`` to ``s7`` per series, ``ink`` for what sums them up.
"""

from __future__ import annotations

import math
import re
import unicodedata
from collections.abc import Callable, Sequence

from markupsafe import Markup, escape

from holdfast.printable import one_line

WIDTH = 420
COLOURS = 8
INK = -1
"""The colour of text, for the line that sums up all others."""
CHARACTER = 6.9
"""A generous width of one character, in units of a chart; fonts differ and are not known here."""

Scale = Callable[[float], float]


def tag(name: str, *children: str | Markup, **attributes: object) -> Markup:
    """An element; children and attributes are escaped unless they are markup. ``class_`` is ``class``.

    >>> print(tag("text", "a < b", x=1.0, class_="tick", text_anchor="end"))
    <text x="1" class="tick" text-anchor="end">a &lt; b</text>
    """
    texts = {k: f"{round(v, 2):g}" if isinstance(v, float) else one_line(str(v)) for k, v in attributes.items()}
    pairs = "".join(f' {k.rstrip("_").replace("_", "-")}="{escape(text)}"' for k, text in texts.items())
    inner = "".join(c if isinstance(c, Markup) else escape(one_line(c)) for c in children)
    return Markup(f"<{name}{pairs}>{inner}</{name}>")


def series(colour: int, again: str = "hollow") -> str:
    """The classes of a series: its colour and, when the colours have been used up, what tells it from the first one.

    >>> series(1), series(9), series(9, "dashed"), series(INK, "dashed")
    ('s1', 's1 hollow', 's1 dashed', 'ink dashed')
    """
    if colour == INK:
        return f"ink {again}"
    return f"s{colour % COLOURS}" + (f" {again}" if colour >= COLOURS else "")


def figure(parts: Sequence[Markup], id: str, title: str, description: str, height: float) -> Markup:
    head = (tag("title", title, id=f"{id}-title"), tag("desc", description, id=f"{id}-desc"))
    named = {"aria_labelledby": f"{id}-title", "aria_describedby": f"{id}-desc"}
    return tag("svg", *head, *parts, viewBox=f"0 0 {WIDTH} {height:g}", role="img", **named)


def scale(domain: tuple[float, float], span: tuple[float, float], *, log: bool = False) -> Scale:
    """A function from the domain to the span; to its middle where the domain is one point."""
    move: Callable[[float], float] = math.log if log else float
    low, high = move(domain[0]), move(domain[1])
    if high == low:
        return lambda _: (span[0] + span[1]) / 2
    return lambda value: span[0] + (move(value) - low) / (high - low) * (span[1] - span[0])


def shorten(text: str, most: int) -> str:
    """Text of at most so many characters.

    >>> shorten("a long class name", 8), shorten("犬と猫と鳥", 8)
    ('a long …', '犬と猫…')
    """
    text = one_line(text)
    if text_width(text) <= most * CHARACTER:
        return text
    while text_width(text) > (most - 1) * CHARACTER:
        text = text[:-1]
    return f"{text}…"


def in_lines(text: str, most: int) -> list[str]:
    """Text as one line or two, each of at most so many characters; broken at a space, or else behind a hyphen.

    >>> in_lines("harmonic mean of both", 13), in_lines("relative-mahalanobis", 18), in_lines("mahalanobis", 8)
    (['harmonic mean', 'of both'], ['relative-', 'mahalanobis'], ['mahalan…'])
    """
    text, room = one_line(text), most * CHARACTER
    if text_width(text) <= room:
        return [text]
    ends = [found.end() for found in re.finditer("[ -]", text[:-1])]
    ends = [end for end in ends if text_width(text[:end].rstrip()) <= room]
    fitting = [end for end in ends if text_width(text[end:]) <= room] or ends
    if not fitting:
        return [shorten(text, most)]
    at = max(fitting, key=lambda end: (text[end - 1] == " ", end))
    return [text[:at].rstrip(), shorten(text[at:], most)]


def text_width(text: str) -> float:
    """About how wide a text is; Chinese, Japanese and Korean characters count twice."""
    return CHARACTER * sum(2 if unicodedata.east_asian_width(c) in "WF" else 1 for c in text)


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
