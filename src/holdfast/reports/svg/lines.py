"""Line charts, and points with whiskers over the values of a setting."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Any

from markupsafe import Markup, escape

from holdfast.printable import one_line
from holdfast.reports.blocks import Chart
from holdfast.reports.svg import (
    COLOURS,
    WIDTH,
    Scale,
    figure,
    linear_ticks,
    log_ticks,
    scale,
    series,
    shorten,
    tag,
    text_width,
    tick_text,
)
from holdfast.reports.text import percent

MOST_POINTS = 60
"""Beyond this many, not every point gets a tooltip of its own: bands of few pixels are hard to point at and large."""
LABEL_PITCH = 15.0
LONGEST_LABEL = 20
BOLD = 1.12
"""How much wider a name is than plain text."""

Point = tuple[float, float]


@dataclass(frozen=True, slots=True)
class Line:
    """A series. Its segments are not joined; a thin one is drawn behind and has no name."""

    label: str
    segments: tuple[tuple[Point, ...], ...]
    colour: int
    thin: bool = False

    @property
    def points(self) -> tuple[Point, ...]:
        return tuple(point for segment in self.segments for point in segment)

    @property
    def style(self) -> str:
        return series(self.colour, "dashed")


def line_chart(
    lines: Sequence[Line],
    *,
    id: str,
    title: str,
    x_label: str,
    y_range: tuple[float, float],
    log: bool = False,
    share: bool = False,
    direct: bool = True,
    whole: bool = True,
    y_label: str = "",
) -> Markup:
    """Series over whole numbers.

    log: the axis is logarithmic; y_range must be positive then. share: values are shares, the axis is in percent.
    direct: each series is named where it ends; otherwise the page has a legend. whole: False for any numbers. y_label:
    what the values are, where the title does not say it.
    """
    named = [line for line in lines if not line.thin and line.points]
    labels = [shorten(line.label, LONGEST_LABEL) if direct else "" for line in named]
    ticks = log_ticks(*y_range) if log else linear_ticks(*y_range)
    texts = [tick_text(round(tick * 100, 9) if share else tick) for tick in ticks]
    left = max(44.0, 10 + max(map(text_width, texts), default=0)) + (16.0 if y_label else 0.0)
    right, top, bottom = 16 + BOLD * max(map(text_width, labels), default=0), 12.0, 40.0
    height = max(250.0, top + bottom + LABEL_PITCH * len(named))
    xs = sorted({x for line in lines for x, _ in line.points})
    x_low, x_high = (xs[0], xs[-1]) if xs else (0.0, 1.0)
    x_of = scale((x_low, x_high), (left, WIDTH - right))
    y_of = scale(y_range, (height - bottom, top), log=log)
    show: Callable[[float], str] = percent if share else lambda value: f"{value:.4g}"

    parts = _frame(dict(zip(map(y_of, ticks), texts, strict=True)), (left, WIDTH - right), x_label, height)
    if y_label:
        middle = (top + height - bottom) / 2
        turned = {"text_anchor": "middle", "transform": f"rotate(-90 12 {middle:.1f})"}
        parts.append(tag("text", y_label, class_="axis", x=12, y=middle, **turned))
    for tick in linear_ticks(x_low, x_high, whole=whole, most=7):
        place = {"x": x_of(tick), "y": height - bottom + 18}
        parts.append(tag("text", tick_text(tick), class_="tick", text_anchor="middle", **place))

    for line in sorted(lines, key=lambda line: not line.thin):
        parts += [_path(segment, line, x_of, y_of) for segment in line.segments if segment]
    ends = [line.points[-1] for line in named]
    places = _apart([y_of(y) for _, y in ends], LABEL_PITCH, (top, height - bottom))
    for line, (x, y), text, at in zip(named, ends, labels, places, strict=True):
        parts.append(tag("circle", class_=f"dot {line.style}", cx=x_of(x), cy=y_of(y), r=3))
        if direct:
            label = tag("text", text, class_=f"name {line.style}", x=WIDTH - right + 10, y=at + 4)
            parts.append(tag("g", tag("title", line.label), label))
    parts += _tooltips(named, x_of, (top, height - bottom), x_label, show)

    last = "; ".join(f"{line.label} ends at {show(y)}" for line, (_, y) in zip(named, ends, strict=True))
    unit = " in percent" if share else ""
    return figure(parts, id, f"{title}{unit} over {x_label}", last or "No points yet", height)


def _frame(ticks: Mapping[float, str], span: tuple[float, float], x_label: str, height: float) -> list[Markup]:
    """Grid lines with their numbers, by height, and the name of the axis below."""
    parts = [tag("text", x_label, class_="axis", x=sum(span) / 2, y=height - 4, text_anchor="middle")]
    for y, text in ticks.items():
        parts.append(tag("line", class_="grid", x1=span[0], x2=span[1], y1=y, y2=y))
        parts.append(tag("text", text, class_="tick", x=span[0] - 8, y=y + 4, text_anchor="end"))
    return parts


def share_lines(
    title: str,
    lines: Sequence[Line],
    *,
    id: str,
    x_label: str,
    drawn: str = "",
    direct: bool = False,
    note: str = "",
    top: float = 1.0,
    whole: bool = True,
    y_label: str = "",
) -> Chart | None:
    """Shares from 0 to the top, with a legend unless each is named where it ends. drawn: the picture's own title."""
    if not lines:
        return None
    svg = line_chart(
        lines, id=id, title=drawn or title, x_label=x_label, y_range=(0.0, top), share=True, direct=direct, whole=whole,
        y_label=y_label,
    )  # fmt: skip
    return Chart(title, svg, () if direct else tuple((line.colour, line.label) for line in lines), note)


def histogram_lines(counts: Mapping[str, Any], low: float, high: float) -> list[Line]:
    """One line per name: the share of its samples in each of the bins between low and high."""
    lines: list[Line] = []
    for name, own in counts.items():
        if isinstance(own, list) and own and (total := sum(own)):
            middles = [low + (i + 0.5) * (high - low) / len(own) for i in range(len(own))]
            points = tuple((x, count / total) for x, count in zip(middles, own, strict=True))
            lines.append(Line(name, (points,), len(lines)))
    return lines


def _path(segment: Sequence[Point], line: Line, x_of: Scale, y_of: Scale) -> Markup:
    style = line.style + " thin" * line.thin
    if len(segment) == 1:
        (x, y), r = segment[0], 1.5 if line.thin else 2.5
        return tag("circle", class_=f"dot {style}", cx=x_of(x), cy=y_of(y), r=r)
    return tag("path", class_=f"line {style}", d="M" + "L".join(f"{x_of(x):.1f} {y_of(y):.1f}" for x, y in segment))


def _tooltips(
    lines: Sequence[Line], x_of: Scale, span: tuple[float, float], x_label: str, show: Callable[[float], str]
) -> list[Markup]:
    """An unseen band over each point: the browser shows its title, the style its rule. No script needed."""
    values = [dict(line.points) for line in lines]
    xs = sorted({x for line in values for x in line})
    xs = sorted({*xs[:: math.ceil(len(xs) / MOST_POINTS) or 1], *xs[-1:]})  # what it ends at is looked for most
    bands = []
    for i, x in enumerate(xs):
        start = x_of(x) if i == 0 else (x_of(xs[i - 1]) + x_of(x)) / 2
        end = x_of(x) if i + 1 == len(xs) else (x_of(xs[i + 1]) + x_of(x)) / 2
        here = (f"{line.label} {show(v[x])}" for line, v in zip(lines, values, strict=True) if x in v)
        text = Markup("\n").join(escape(one_line(t)) for t in (f"{x_label} {tick_text(x)}", *here))
        band = tag("rect", x=start - 1, width=end - start + 2, y=span[0], height=span[1] - span[0])
        rule = tag("line", x1=x_of(x), x2=x_of(x), y1=span[0], y2=span[1])
        bands.append(tag("g", tag("title", text), band, rule, class_="band"))
    return bands


def _apart(places: Sequence[float], least: float, span: tuple[float, float]) -> list[float]:
    """Places moved as little as needed to be inside the span and so far from each other.

    >>> _apart([10, 12, 60], 10, (0.0, 100.0)), _apart([98, 99], 10, (0.0, 100.0))
    ([6.0, 16.0, 60.0], [90.0, 100.0])
    """
    order = sorted(range(len(places)), key=lambda i: places[i])
    clusters: list[list[float]] = []  # of places less the room for those before them, so that equal ones just fit
    for rank, i in enumerate(order):
        clusters.append([places[i] - rank * least])
        while len(clusters) > 1 and fmean(clusters[-2]) > fmean(clusters[-1]):
            clusters[-2:] = [clusters[-2] + clusters[-1]]
    last = span[1] - (len(order) - 1) * least
    moved = [min(max(fmean(cluster), span[0]), last) for cluster in clusters for _ in cluster]
    result = {i: moved[rank] + rank * least for rank, i in enumerate(order)}
    return [result[i] for i in range(len(places))]


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
class Level:
    """A share that does not depend on the setting."""

    value: float
    colour: int
    note: str


def point_chart(
    series: Sequence[Sequence[Spot]],
    levels: Sequence[Level],
    *,
    id: str,
    title: str,
    x_label: str,
    places: Sequence[str],
    joined: bool,
    y_range: tuple[float, float],
) -> Markup:
    """Shares in percent over places that stand equally far apart, whatever the numbers at them.

    series: one per colour. joined: a line goes through the spots of one colour; for values that have an order.
    """
    inset = 26.0 if len(places) > 1 else 0.0
    x_of = scale((0, len(places) - 1), (LEFT + inset, WIDTH - RIGHT - inset))
    y_of = scale(y_range, (HEIGHT - BOTTOM, TOP))
    ticks = {y_of(tick): tick_text(round(tick * 100, 9)) for tick in linear_ticks(*y_range)}
    parts = _frame(ticks, (LEFT, WIDTH - RIGHT), x_label, HEIGHT)
    most = max(3, int((WIDTH - LEFT - RIGHT) / max(len(places), 1) / text_width("0")))
    for i, name in enumerate(places):
        at = {"x": x_of(i), "y": HEIGHT - BOTTOM + 18, "text_anchor": "middle"}
        parts.append(tag("g", tag("title", name), tag("text", shorten(name, most), class_="tick", **at)))
    for level in levels:
        path = f"M{LEFT:.1f} {y_of(level.value):.1f}H{WIDTH - RIGHT:.1f}"
        line = tag("path", class_=f"line dashed s{level.colour % COLOURS}", d=path)
        parts.append(tag("g", tag("title", level.note), line))
    for i, spots in enumerate(series):
        style, shift = f"s{i % COLOURS}", (i - (len(series) - 1) / 2) * APART
        if joined and len(spots) > 1:
            path = "M" + "L".join(f"{x_of(s.place) + shift:.1f} {y_of(s.value):.1f}" for s in spots)
            parts.append(tag("path", class_=f"line {style}", d=path))
        for spot in spots:
            x, inner = x_of(spot.place) + shift, [tag("title", spot.note)]
            if spot.low is not None and spot.high is not None:
                low, high = y_of(spot.low), y_of(spot.high)
                caps = "".join(f"M{x - CAP:.1f} {y:.1f}h{2 * CAP:.1f}" for y in (low, high))
                inner.append(tag("path", class_="whisker", d=f"M{x:.1f} {low:.1f}V{high:.1f}{caps}"))
            inner.append(tag("circle", class_=f"dot {style}", cx=x, cy=y_of(spot.value), r=3.5))
            parts.append(tag("g", *inner))
    said = [*(spot.note for spots in series for spot in spots), *(level.note for level in levels)]
    return figure(parts, id, f"{title}, in percent", "; ".join(said), HEIGHT)
