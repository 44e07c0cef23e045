"""What a section is made of. Blocks are data: each rendering knows how to draw them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from markupsafe import Markup


@dataclass(frozen=True, slots=True)
class Cell:
    """A table cell.

    value: what it is sorted by, the number in full; text sorts by itself.
    strong: the best of its column.
    """

    text: str
    value: float | None = None
    strong: bool = False


@dataclass(frozen=True, slots=True)
class Column:
    title: str
    numeric: bool = False


@dataclass(frozen=True, slots=True)
class Table:
    """The first cell of a row names it. A cell without text was not measured."""

    kind: ClassVar[str] = "table"
    caption: str
    columns: tuple[Column, ...]
    rows: tuple[tuple[Cell, ...], ...]
    note: str = ""


@dataclass(frozen=True, slots=True)
class Chart:
    """A picture with its title; the legend names the colours that the picture does not name itself."""

    kind: ClassVar[str] = "chart"
    title: str
    svg: Markup
    legend: tuple[tuple[int, str], ...] = ()
    note: str = ""


@dataclass(frozen=True, slots=True)
class Picture:
    source: str
    alt: str
    title: str
    detail: str
    wrong: bool


@dataclass(frozen=True, slots=True)
class Gallery:
    """Pictures with their titles.

    wide: each is a row of images, drawn as wide as the page and one below the other. together: so many pictures belong
    together each time, and stay on one line where there is room.
    """

    kind: ClassVar[str] = "gallery"
    title: str
    pictures: tuple[Picture, ...]
    note: str = ""
    wide: bool = False
    together: int = 1


@dataclass(frozen=True, slots=True)
class Side:
    """Blocks side by side, where there is room."""

    kind: ClassVar[str] = "side"
    blocks: tuple[Block, ...]


@dataclass(frozen=True, slots=True)
class Details:
    """Blocks that show on demand."""

    kind: ClassVar[str] = "details"
    summary: str
    blocks: tuple[Block, ...]


Block = Table | Chart | Gallery | Side | Details


@dataclass(frozen=True, slots=True)
class Section:
    """One chapter of a report.

    id: its anchor, a word.
    lead: one or two sentences on how to read it.
    """

    id: str
    title: str
    lead: str
    blocks: tuple[Block, ...]
