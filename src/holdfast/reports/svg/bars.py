"""Horizontal bars with interval whiskers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from markupsafe import Markup

from holdfast.reports.svg.element import WIDTH, Scale, figure, scale, series, shorten, tag, text_width
from holdfast.reports.svg.ticks import tick_text


@dataclass(frozen=True, slots=True)
class Bar:
    """A share in [0, 1] with its interval. Without a value, its text is written in its place.

    mark: a share that was demanded.
    """

    value: float | None
    low: float | None
    high: float | None
    text: str
    note: str
    colour: int = 0
    mark: float | None = None


@dataclass(frozen=True, slots=True)
class BarRow:
    label: str
    bars: tuple[Bar, ...]


def bar_chart(rows: Sequence[BarRow], *, id: str, title: str, longest: int = 18) -> Markup:
    """Shares from 0 to 100 %, with whiskers for their intervals. longest: characters of a row's name."""
    labels = [shorten(row.label, longest) for row in rows]
    most = max((len(row.bars) for row in rows), default=1)
    roomy = most <= 3
    pitch = 22.0 if most == 1 else 15.0 if roomy else 9.0
    gap = 0.0 if most == 1 else 9.0
    texts = [bar.text for row in rows for bar in row.bars if bar.value is not None] if roomy else []
    left = 16 + max(map(text_width, labels), default=0)
    right, top, bottom = 14 + max(map(text_width, texts), default=0), 4.0, 24.0
    x_of = scale((0, 1), (left, WIDTH - right))
    height = top + bottom + sum(pitch * len(row.bars) + gap for row in rows)

    parts = []
    for tick in (0, 0.25, 0.5, 0.75, 1):
        x = x_of(tick)
        parts.append(tag("line", class_="grid", x1=x, x2=x, y1=top, y2=height - bottom))
        parts.append(tag("text", tick_text(tick * 100), class_="tick", x=x, y=height - 6, text_anchor="middle"))
    y = top + gap / 2
    for row, label in zip(rows, labels, strict=True):
        middle = y + pitch * len(row.bars) / 2
        text = tag("text", label, class_="label", x=left - 8, y=middle + 4, text_anchor="end")
        parts.append(tag("g", tag("title", row.label), text))
        missing = {bar.text for bar in row.bars}
        if all(bar.value is None for bar in row.bars) and len(missing) == 1:
            parts.append(_missing(missing.pop(), x_of, middle))
        else:
            parts += [_bar(bar, y + pitch * i, pitch, x_of, roomy) for i, bar in enumerate(row.bars)]
        y += pitch * len(row.bars) + gap
    numbers = "; ".join(bar.note for row in rows for bar in row.bars)
    return figure(parts, id, f"{title}, in percent", numbers, height)


def _missing(text: str, x_of: Scale, middle: float) -> Markup:
    return tag("text", text, class_="none", x=x_of(0) + 6, y=middle + 4)


def _bar(bar: Bar, y: float, pitch: float, x_of: Scale, roomy: bool) -> Markup:
    middle, thickness = y + pitch / 2, pitch * 0.64
    if bar.value is None:
        return _missing(bar.text, x_of, middle)
    start, end = x_of(0), x_of(_inside(bar.value))
    place = {"x": start, "y": middle - thickness / 2, "width": end - start, "height": thickness}
    parts = [tag("title", bar.note), tag("rect", class_=f"bar {series(bar.colour)}", **place)]
    if bar.low is not None and bar.high is not None:
        low, high, cap = x_of(_inside(bar.low)), x_of(_inside(bar.high)), min(thickness / 2 - 1, 4)
        ends = "".join(f"M{x:.1f} {middle - cap:.1f}v{2 * cap:.1f}" for x in (low, high))
        parts.append(tag("path", class_="whisker", d=f"M{low:.1f} {middle:.1f}H{high:.1f}{ends}"))
    if bar.mark is not None:
        x = x_of(_inside(bar.mark))
        parts.append(tag("line", class_="mark", x1=x, x2=x, y1=y + 0.5, y2=y + pitch - 0.5))
    if roomy:
        parts.append(tag("text", bar.text, class_="value", x=WIDTH, y=middle + 4, text_anchor="end"))
    return tag("g", *parts)


def _inside(share: float) -> float:
    return min(max(share, 0.0), 1.0)
