"""The charts and tables of a report as files for a paper: SVG and PNG, CSV and LaTeX. Open it to change how they look.

The SVG is the page's own chart with its colours and legend inside. The PNG is drawn from that SVG by matplotlib: charts
use seven kinds of elements, so no other library and no browser is needed.
"""

from __future__ import annotations

import io
import re
import warnings
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

from markupsafe import Markup

from holdfast.errors import HoldfastError
from holdfast.files import write_atomic
from holdfast.reports.blocks import Block, Chart, Details, Section, Side, Table
from holdfast.reports.renderings import csv_text, latex
from holdfast.reports.svg import COLOURS, WIDTH, series, tag, text_width

INK, MUTED, RULE = "#1b1f23", "#5b636b", "#e2e2dc"
SERIES = ("#2f6198", "#b04d18", "#1d7450", "#7549a3", "#806407", "#a93a66", "#1c7080", "#5d6670")
"""The page's colours on white paper."""
STYLES: Mapping[str, Mapping[str, Any]] = {
    "tick": {"fill": MUTED, "font-size": 11}, "axis": {"fill": MUTED, "font-size": 11},
    "none": {"fill": MUTED, "font-size": 11, "font-style": "italic"}, "value": {"font-size": 11},
    "name": {"font-weight": "bold", "fill": "series"}, "place": {"font-weight": "bold"},
    "grid": {"stroke": RULE, "stroke-width": 1}, "whisker": {"fill": "none", "stroke": INK, "stroke-width": 1.25},
    "mark": {"stroke": INK, "stroke-width": 3}, "line": {"fill": "none", "stroke": "series", "stroke-width": 2.25},
    "dashed": {"stroke-dasharray": "5 4"}, "dot": {"fill": "series"}, "bar": {"fill": "series", "fill-opacity": 0.72},
    "hollow": {"fill-opacity": 0.2, "stroke": "series", "stroke-width": 1.5},
    "thin": {"opacity": 0.4, "stroke-width": 1},
}  # fmt: skip
"""What each class of a chart looks like; later ones win. "series" is the colour of the element's series."""
LEGEND_ROW = 18.0
MARGIN = 8
DPI = 200
UNSEEN = {"title", "desc", "style"}


def check_folder(folder: str | Path) -> Path:
    """The folder that figures go to; refused where it cannot be one."""
    path = Path(folder)
    wrong = next((p for p in (path, *path.parents) if p.exists()), path)
    if wrong.exists() and not wrong.is_dir():
        raise HoldfastError(f"cannot write figures to {path}: {wrong} is a file; name a folder")
    return path


def write_figures(sections: Sequence[Section], folder: str | Path) -> tuple[int, int]:
    """Write every chart as SVG and PNG and every table with numbers as CSV and LaTeX; returns how many of each kind."""
    path = check_folder(folder)
    charts = tables = 0
    for section in sections:
        for number, block in enumerate(_leaves(section.blocks), start=1):
            title = block.title if isinstance(block, Chart) else block.caption
            name = f"{_slug(section.id)}-{number:02d}-{_slug(title)}"
            if isinstance(block, Chart):
                made = standalone(block)
                write_atomic(path / f"{name}.svg", made.encode("utf-8", "backslashreplace"))
                write_atomic(path / f"{name}.png", rasterized(made))
                charts += 1
            elif any(cell.value is not None for row in block.rows for cell in row):
                write_atomic(path / f"{name}.csv", table_csv(block).encode("utf-8", "backslashreplace"))
                write_atomic(path / f"{name}.tex", latex(block).encode("utf-8", "backslashreplace"))
                tables += 1
    return charts, tables


def _leaves(blocks: Sequence[Block]) -> Iterator[Chart | Table]:
    for block in blocks:
        if isinstance(block, (Side, Details)):
            yield from _leaves(block.blocks)
        elif isinstance(block, (Chart, Table)):
            yield block


def _slug(text: str) -> str:
    """A part of a file's name, whatever a class or a check is called.

    >>> _slug("Accuracy by class, %: ../lff"), _slug("→")
    ('accuracy-by-class-lff', 'figure')
    """
    return re.sub("[^a-z0-9]+", "-", text.lower())[:50].strip("-") or "figure"


def table_csv(table: Table) -> str:
    """A table as it is shown; beside a column of numbers, the same in full, shares from 0 to 1.

    A title that repeats gets a number.

    >>> from holdfast.reports.blocks import Cell, Column
    >>> columns = Column.texts("method") + Column.numbers("accuracy, %")
    >>> print(table_csv(Table("", columns, ((Cell("erm"), Cell("50.3", 0.50251)),))), end="")
    method,"accuracy, %","accuracy, % (in full)"
    erm,50.3,0.50251
    """
    titles: list[str] = []
    for column in table.columns:
        again = titles.count(column.title)
        titles.append(f"{column.title} ({again + 1})" if again else column.title)
    full = [any(row[i].value is not None for row in table.rows) for i in range(len(titles))]
    rows = []
    for row in table.rows:
        made: dict[str, object] = {}
        for title, cell, numeric in zip(titles, row, full, strict=True):
            made |= {title: cell.text} | ({f"{title} (in full)": cell.value} if numeric else {})
        rows.append(made)
    return csv_text(rows)


def standalone(chart: Chart) -> str:
    """A chart as an SVG file of its own: with its colours, and its legend above it."""
    found = re.fullmatch(r'<svg viewBox="0 0 \d+ ([\d.]+)"[^>]*>(.*)</svg>', str(chart.svg), re.DOTALL)
    if found is None:  # as :func:`holdfast.reports.svg.figure` never writes it
        raise ValueError(f"not a chart: {str(chart.svg)[:60]}")
    legend, top = _legend(chart.legend)
    height = float(found[1]) + top
    inner = tag("g", Markup(found[2]), transform=f"translate(0 {top:g})")
    wide, high = f"{WIDTH + 2 * MARGIN}", f"{height + 2 * MARGIN:g}"
    size = {"viewBox": f"-{MARGIN} -{MARGIN} {wide} {high}", "width": wide, "height": high}
    style = tag("style", Markup(_css()))
    return str(tag("svg", style, *legend, inner, xmlns="http://www.w3.org/2000/svg", **size))


def _legend(entries: Sequence[tuple[int, str]]) -> tuple[list[Markup], float]:
    """Names beside their colours, as many on a line as fit; and the height that they take."""
    parts, x, y = [], 0.0, 0.0
    for colour, name in entries:
        wide = 24 + text_width(name)
        x, y = (0.0, y + LEGEND_ROW) if x and x + wide > WIDTH else (x, y)
        parts.append(tag("rect", class_=f"dot {series(colour)}", x=x, y=y + 4, width=9.0, height=9.0))
        parts.append(tag("text", name, class_="value", x=x + 14, y=y + 12))
        x += wide
    return parts, y + LEGEND_ROW + 6 if entries else 0.0


def _css() -> str:
    rules = [f"text{{fill:{INK};font:12.5px 'DejaVu Sans',Helvetica,Arial,sans-serif}}.band{{display:none}}"]
    for name, own in STYLES.items():
        plain = {k: v for k, v in own.items() if v != "series"}
        text = ";".join(f"{k}:{v}px" if k == "font-size" else f"{k}:{v}" for k, v in plain.items())
        rules += [f".{name}{{{text}}}"] if text else []
        for kind, colour in (*((f"s{i}", colour) for i, colour in enumerate(SERIES)), ("ink", INK)):
            rules += [f".{name}.{kind}{{{k}:{colour}}}" for k, v in own.items() if v == "series"]
    return "".join(rules)


def rasterized(svg: str) -> bytes:
    """The PNG of a chart that :func:`standalone` made."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    root = ElementTree.fromstring(svg)
    width, height = float(root.get("width", WIDTH)), float(root.get("height", "1"))
    drawn = Figure(figsize=(width / 72, height / 72), dpi=DPI, facecolor="white")
    axes = drawn.add_axes((0.0, 0.0, 1.0, 1.0))
    axes.set(xlim=(-MARGIN, width - MARGIN), ylim=(height - MARGIN, -MARGIN))
    axes.set_axis_off()
    for element, down in _elements(root, 0.0):
        _draw(axes, element, down)
    made = io.BytesIO()
    with warnings.catch_warnings():  # a letter that the font lacks is drawn as a box
        warnings.filterwarnings("ignore", message="Glyph .* missing")
        FigureCanvasAgg(drawn)
        drawn.savefig(made, format="png", dpi=DPI, metadata={"Software": "holdfast"})
    return made.getvalue()


def _elements(parent: ElementTree.Element, down: float) -> Iterator[tuple[ElementTree.Element, float]]:
    """Every element that is seen, with how far its groups move it down."""
    for element in parent:
        kind = element.tag.rpartition("}")[2]
        if kind == "g":
            moved = re.fullmatch(r"translate\(0 ([-\d.]+)\)", element.get("transform", ""))
            if element.get("class") != "band":
                yield from _elements(element, down + (float(moved[1]) if moved else 0.0))
        elif kind not in UNSEEN:
            yield element, down


def _style(element: ElementTree.Element) -> dict[str, Any]:
    """What the classes and the attributes of an element make of it."""
    classes = element.get("class", "").split()
    number = next((int(c[1:]) for c in classes if re.fullmatch(r"s\d", c)), 0)
    colour = INK if "ink" in classes else SERIES[number % COLOURS]
    found: dict[str, Any] = {"fill": INK, "font-size": 12.5}
    for name, own in STYLES.items():
        found |= dict(own) if name in classes else {}
    found |= {k: element.get(k) for k in ("fill", "fill-opacity") if element.get(k) is not None and k not in found}
    found |= {"fill-opacity": element.get("fill-opacity", found.get("fill-opacity", 1.0))}
    found |= {"fill": "none"} if element.get("fill") == "none" else {}
    return {k: colour if v == "series" else v for k, v in found.items()}


def _draw(axes: Any, element: ElementTree.Element, down: float) -> None:
    from matplotlib.patches import Circle, PathPatch, Rectangle
    from matplotlib.path import Path as Outline

    def at(*names: str) -> list[float]:
        return [float(element.get(name, "0")) for name in names]

    kind, style = element.tag.rpartition("}")[2], _style(element)
    shade = float(style.get("opacity", 1.0))
    face = style["fill"]
    thickness = float(style.get("stroke-width", 0.0))
    paint: dict[str, Any] = {
        "facecolor": "none" if face == "none" else (face, shade * float(style["fill-opacity"])),
        "edgecolor": (style["stroke"], shade) if "stroke" in style else "none",
        "linewidth": thickness, "clip_on": False,
    }  # fmt: skip
    if "stroke-dasharray" in style and thickness:
        paint["linestyle"] = (0, (5 / thickness, 4 / thickness))  # matplotlib counts in widths of the line
    if kind == "text":
        _write(axes, element, down, style)
    elif kind == "rect":
        x, y, wide, high = at("x", "y", "width", "height")
        axes.add_patch(Rectangle((x, y + down), wide, high, **paint))
    elif kind == "circle":
        x, y, r = at("cx", "cy", "r")
        axes.add_patch(Circle((x, y + down), r, **paint))
    elif kind == "line":
        x1, y1, x2, y2 = at("x1", "y1", "x2", "y2")
        axes.add_patch(PathPatch(Outline([(x1, y1 + down), (x2, y2 + down)]), **paint))
    elif kind == "path":
        places, codes = _outline(element.get("d", ""))
        axes.add_patch(PathPatch(Outline([(x, y + down) for x, y in places], codes), **paint))


def _outline(text: str) -> tuple[list[tuple[float, float]], list[int]]:
    """The points of a path and what leads to each: 1 moves, 2 draws. Charts use these commands alone.

    >>> _outline("M1 2L3 4H5v-1")
    ([(1.0, 2.0), (3.0, 4.0), (5.0, 4.0), (5.0, 3.0)], [1, 2, 2, 2])
    """
    x = y = 0.0
    places, codes = [], []
    for command, given in re.findall(r"([MLHVhv])([^MLHVhv]*)", text):
        numbers = [float(n) for n in re.findall(r"-?[\d.]+", given)]
        match command:
            case "M" | "L":
                x, y = numbers
            case "H":
                x = numbers[0]
            case "V":
                y = numbers[0]
            case "h":
                x += numbers[0]
            case "v":
                y += numbers[0]
        places.append((x, y))
        codes.append(1 if command == "M" else 2)
    return places, codes


def _write(axes: Any, element: ElementTree.Element, down: float, style: Mapping[str, Any]) -> None:
    turned = re.match(r"rotate\((-?[\d.]+)", element.get("transform", ""))
    axes.text(
        float(element.get("x", "0")), float(element.get("y", "0")) + down, "".join(element.itertext()),
        ha={"middle": "center", "end": "right"}.get(element.get("text-anchor", ""), "left"), va="baseline",
        fontsize=style["font-size"], color=style["fill"], weight=style.get("font-weight", "normal"),
        style=style.get("font-style", "normal"), rotation=-float(turned[1]) if turned else 0.0,
        rotation_mode="anchor", parse_math=False, clip_on=False,
    )  # fmt: skip
