"""A table of shares as shaded cells."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from markupsafe import Markup

from holdfast.reports.svg.element import COLOURS, WIDTH, figure, shorten, tag, text_width

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
    """Rows from top to bottom, one cell a column. What does not fit in a cell is in its tooltip."""
    names, heads = [shorten(r, 14) for r in rows], [shorten(c, 14) for c in columns]
    left = 30 + max(map(text_width, names), default=0)
    width = (WIDTH - left - 4) / max(len(heads), 1)
    slanted = any(text_width(head) > width - 4 for head in heads)
    most = max(map(text_width, heads), default=0)
    top = 22.0 + (most * SLANT + 8 if slanted else 16)
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
    said = "; ".join(cell.note for own in cells for cell in own)
    return figure(parts, id, title, said, height)


def _cell(cell: Heat, x: float, y: float, width: float, colour: int) -> Markup:
    box = {"x": x + 1, "y": y + 1, "width": max(width - 2, 1.0), "height": ROW - 2}
    parts = [tag("title", cell.note)]
    if cell.shade is None:
        parts.append(tag("rect", class_="grid", fill="none", **box))
    else:
        opacity = FAINTEST + (STRONGEST - FAINTEST) * min(max(cell.shade, 0.0), 1.0)
        parts.append(tag("rect", class_=f"dot s{colour % COLOURS}", fill_opacity=opacity, **box))
    if text_width(cell.text) <= width - 2:
        place = {"x": x + width / 2, "y": y + ROW / 2 + 4, "text_anchor": "middle"}
        parts.append(tag("text", cell.text, class_="none" if cell.shade is None else "value", **place))
    return tag("g", *parts)
