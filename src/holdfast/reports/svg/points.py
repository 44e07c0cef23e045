"""Points with whiskers over the values of a setting, and dashed lines for what they are compared with."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from markupsafe import Markup

from holdfast.reports.svg.element import COLOURS, WIDTH, Scale, figure, scale, shorten, tag, text_width
from holdfast.reports.svg.ticks import linear_ticks, tick_text

HEIGHT, LEFT, RIGHT, TOP, BOTTOM = 250.0, 44.0, 14.0, 12.0, 40.0
APART = 7.0
"""Between points of several series over one value, so that their whiskers do not lie on each other."""
CAP = 3.0


@dataclass(frozen=True, slots=True)
class Spot:
    """A share over the value at a place, with its interval. note: what it says in full."""

    place: int
    value: float
    low: float | None
    high: float | None
    note: str


@dataclass(frozen=True, slots=True)
class Series:
    """Spots of one colour. joined: a line goes through them; for values that have an order."""

    spots: tuple[Spot, ...]
    colour: int
    joined: bool = True


@dataclass(frozen=True, slots=True)
class Level:
    """A share that does not depend on the setting."""

    value: float
    colour: int
    note: str


def point_chart(
    series: Sequence[Series],
    levels: Sequence[Level],
    *,
    id: str,
    title: str,
    x_label: str,
    places: Sequence[str],
    y_range: tuple[float, float],
) -> Markup:
    """Shares in percent over places that stand equally far apart, whatever the numbers at them."""
    inset = 26.0 if len(places) > 1 else 0.0
    x_of = scale((0, len(places) - 1), (LEFT + inset, WIDTH - RIGHT - inset))
    y_of = scale(y_range, (HEIGHT - BOTTOM, TOP))
    parts = []
    for tick in linear_ticks(*y_range):
        y = y_of(tick)
        parts.append(tag("line", class_="grid", x1=LEFT, x2=WIDTH - RIGHT, y1=y, y2=y))
        text = tick_text(round(tick * 100, 9))
        parts.append(tag("text", text, class_="tick", x=LEFT - 8, y=y + 4, text_anchor="end"))
    room = (WIDTH - LEFT - RIGHT) / max(len(places), 1)
    most = max(3, int(room / text_width("0")))
    for i, name in enumerate(places):
        at = {"x": x_of(i), "y": HEIGHT - BOTTOM + 18, "text_anchor": "middle"}
        parts.append(tag("g", tag("title", name), tag("text", shorten(name, most), class_="tick", **at)))
    middle = (LEFT + WIDTH - RIGHT) / 2
    parts.append(tag("text", x_label, class_="axis", x=middle, y=HEIGHT - 4, text_anchor="middle"))
    for level in levels:
        path = f"M{LEFT:.1f} {y_of(level.value):.1f}H{WIDTH - RIGHT:.1f}"
        line = tag("path", class_=f"line dashed s{level.colour % COLOURS}", d=path)
        parts.append(tag("g", tag("title", level.note), line))
    for i, one in enumerate(series):
        shift = (i - (len(series) - 1) / 2) * APART
        parts += _drawn(one, shift, x_of, y_of)
    said = "; ".join([*(spot.note for one in series for spot in one.spots), *(level.note for level in levels)])
    return figure(parts, id, f"{title}, in percent", said, HEIGHT)


def _drawn(series: Series, shift: float, x_of: Scale, y_of: Scale) -> list[Markup]:
    style = f"s{series.colour % COLOURS}"
    parts = []
    if series.joined and len(series.spots) > 1:
        path = "M" + "L".join(f"{x_of(s.place) + shift:.1f} {y_of(s.value):.1f}" for s in series.spots)
        parts.append(tag("path", class_=f"line {style}", d=path))
    for spot in series.spots:
        x, inner = x_of(spot.place) + shift, [tag("title", spot.note)]
        if spot.low is not None and spot.high is not None:
            low, high = y_of(spot.low), y_of(spot.high)
            caps = "".join(f"M{x - CAP:.1f} {y:.1f}h{2 * CAP:.1f}" for y in (low, high))
            inner.append(tag("path", class_="whisker", d=f"M{x:.1f} {low:.1f}V{high:.1f}{caps}"))
        inner.append(tag("circle", class_=f"dot {style}", cx=x, cy=y_of(spot.value), r=3.5))
        parts.append(tag("g", *inner))
    return parts
