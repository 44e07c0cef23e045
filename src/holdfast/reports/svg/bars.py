"""Horizontal bars with interval whiskers, and tables of shares as shaded cells."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from markupsafe import Markup

from holdfast.reports.svg import (
    WIDTH,
    Scale,
    figure,
    in_lines,
    linear_ticks,
    scale,
    series,
    shorten,
    tag,
    text_width,
    tick_text,
)

LINE = 14.0
"""From one line of a name to the next."""


@dataclass(frozen=True, slots=True)
class Bar:
    """A value with its interval; without a value, its text is written in its place. mark: what a gate asks for."""

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


def bar_chart(
    rows: Sequence[BarRow], *, id: str, title: str, longest: int = 18, reach: tuple[float, float] | None = None
) -> Markup:
    """Bars from zero with whiskers: shares from 0 to 100 %, or numbers in a reach. longest: characters of a line of a
    name, which has two at most."""
    labels = [in_lines(row.label, longest) for row in rows]
    most = max((len(row.bars) for row in rows), default=1)
    roomy = most <= 3
    pitch = 22.0 if most == 1 else 15.0 if roomy else 9.0
    gap = 0.0 if most == 1 else 9.0
    texts = [bar.text for row in rows for bar in row.bars if bar.value is not None] if roomy else []
    left = 16 + max((text_width(line) for lines in labels for line in lines), default=0)
    right, top, bottom = 14 + max(map(text_width, texts), default=0), 4.0, 24.0
    tall = [max(pitch * len(row.bars) + gap, LINE * len(own) + 2) for row, own in zip(rows, labels, strict=True)]
    ends = reach or (0.0, 1.0)
    x_of = scale(ends, (left, WIDTH - right))
    height = top + bottom + sum(tall)

    parts = []
    for tick in linear_ticks(*reach) if reach else (0, 0.25, 0.5, 0.75, 1):
        x, text = x_of(tick), tick_text(tick if reach else tick * 100)
        parts.append(tag("line", class_="grid", x1=x, x2=x, y1=top, y2=height - bottom))
        parts.append(tag("text", text, class_="tick", x=x, y=height - 6, text_anchor="middle"))
    y = top
    for row, lines, high in zip(rows, labels, tall, strict=True):
        middle = y + high / 2
        heights = [middle + 4 + LINE * (i - (len(lines) - 1) / 2) for i in range(len(lines))]
        place = {"class_": "label", "x": left - 8, "text_anchor": "end"}
        names = [tag("text", line, y=at, **place) for line, at in zip(lines, heights, strict=True)]
        parts.append(tag("g", tag("title", row.label), *names))
        missing = {bar.text for bar in row.bars}
        if all(bar.value is None for bar in row.bars) and len(missing) == 1:
            parts.append(_missing(missing.pop(), x_of, middle))
        else:
            start = middle - pitch * len(row.bars) / 2
            parts += [_bar(bar, start + pitch * i, pitch, x_of, ends, roomy) for i, bar in enumerate(row.bars)]
        y += high
    numbers = "; ".join(bar.note for row in rows for bar in row.bars)
    return figure(parts, id, title if reach else f"{title}, in percent", numbers, height)


def _missing(text: str, x_of: Scale, middle: float) -> Markup:
    return tag("text", text, class_="none", x=x_of(0) + 6, y=middle + 4)


def _bar(bar: Bar, y: float, pitch: float, x_of: Scale, span: tuple[float, float], roomy: bool) -> Markup:
    def inside(value: float) -> float:
        return x_of(min(max(value, span[0]), span[1]))

    middle, thickness = y + pitch / 2, pitch * 0.64
    if bar.value is None:
        return _missing(bar.text, x_of, middle)
    start, end = sorted((x_of(0), inside(bar.value)))
    place = {"x": start, "y": middle - thickness / 2, "width": end - start, "height": thickness}
    parts = [tag("title", bar.note), tag("rect", class_=f"bar {series(bar.colour)}", **place)]
    if bar.low is not None and bar.high is not None:
        low, high, cap = inside(bar.low), inside(bar.high), min(thickness / 2 - 1, 4)
        ends = "".join(f"M{x:.1f} {middle - cap:.1f}v{2 * cap:.1f}" for x in (low, high))
        parts.append(tag("path", class_="whisker", d=f"M{low:.1f} {middle:.1f}H{high:.1f}{ends}"))
    if bar.mark is not None:
        x = inside(bar.mark)
        parts.append(tag("line", class_="mark", x1=x, x2=x, y1=y + 0.5, y2=y + pitch - 0.5))
    if roomy:
        parts.append(tag("text", bar.text, class_="value", x=WIDTH, y=middle + 4, text_anchor="end"))
    return tag("g", *parts)


ROW = 24.0
SLANT = 0.71
"""Sine of 45°: labels of narrow columns are written at that angle."""
FAINTEST, STRONGEST = 0.04, 0.55
"""Shades between which text on a cell stays readable, in light and in dark."""


@dataclass(frozen=True, slots=True)
class Heat:
    """A cell: how strongly it is shaded, from 0 to 1, what is written in it, what it says in full. No shade: empty."""

    shade: float | None
    text: str
    note: str


def heat_map(
    rows: Sequence[str],
    columns: Sequence[str],
    cells: Sequence[Sequence[Heat]],
    *,
    id: str,
    title: str,
    x_label: str,
    y_label: str,
    colour: int = 1,
) -> Markup:
    """Rows from top to bottom, one cell per column. What does not fit in a cell is in its tooltip."""
    names, heads = [shorten(r, 14) for r in rows], [shorten(c, 14) for c in columns]
    left = 30 + max(map(text_width, names), default=0)
    width = (WIDTH - left - 4) / max(len(heads), 1)
    slanted = any(text_width(head) > width - 4 for head in heads)
    if slanted:  # the last names lean beyond their columns
        beyond = [text_width(head) * SLANT - (k + 0.5) * width for k, head in enumerate(reversed(heads))]
        width -= max(0.0, *beyond) / len(heads)
    top = 22.0 + (max(map(text_width, heads)) * SLANT + 8 if slanted else 16)
    height = top + ROW * len(names) + 6

    parts = [tag("text", x_label, class_="axis", x=(left + WIDTH) / 2, y=12, text_anchor="middle")]
    middle = top + ROW * len(names) / 2
    turned = {"text_anchor": "middle", "transform": f"rotate(-90 12 {middle:.1f})"}
    parts.append(tag("text", y_label, class_="axis", x=12, y=middle, **turned))
    for i, (head, full) in enumerate(zip(heads, columns, strict=True)):
        x = left + width * (i + 0.5)
        place = {"x": x, "y": top - 6, "text_anchor": "middle"}
        if slanted:
            place |= {"text_anchor": "start", "transform": f"rotate(-45 {x:.1f} {top - 6:.1f})"}
        parts.append(tag("g", tag("title", full), tag("text", head, class_="tick", **place)))
    for row, (name, full, own) in enumerate(zip(names, rows, cells, strict=True)):
        y = top + ROW * row
        label = tag("text", name, class_="label", x=left - 8, y=y + ROW / 2 + 4, text_anchor="end")
        parts.append(tag("g", tag("title", full), label))
        parts += [_cell(cell, left + width * i, y, width, colour) for i, cell in enumerate(own)]
    return figure(parts, id, title, "; ".join(cell.note for own in cells for cell in own), height)


def _cell(cell: Heat, x: float, y: float, width: float, colour: int) -> Markup:
    box = {"x": x + 1, "y": y + 1, "width": max(width - 2, 1.0), "height": ROW - 2}
    parts = [tag("title", cell.note)]
    if cell.shade is None:
        parts.append(tag("rect", class_="grid", fill="none", **box))
    else:
        opacity = FAINTEST + (STRONGEST - FAINTEST) * min(max(cell.shade, 0.0), 1.0)
        parts.append(tag("rect", class_=f"dot {series(colour)}", fill_opacity=opacity, **box))
    if text_width(cell.text) <= width - 2:
        place = {"x": x + width / 2, "y": y + ROW / 2 + 4, "text_anchor": "middle"}
        parts.append(tag("text", cell.text, class_="none" if cell.shade is None else "value", **place))
    return tag("g", *parts)
