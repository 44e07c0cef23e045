"""What a section of a report is made of, and how many pictures a page may hold.

Blocks are data: each rendering knows how to draw them. Open this file to add a kind of block.
"""

from __future__ import annotations

import base64
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate

from markupsafe import Markup

PNG = b"\x89PNG\r\n\x1a\n"


@dataclass(frozen=True, slots=True)
class Cell:
    """A table cell. value: the number in full, by which it is sorted. strong: the best of its column.

    id: an anchor of its own. link: the anchor that explains it.
    """

    text: str
    value: float | None = None
    strong: bool = False
    id: str = ""
    link: str = ""


@dataclass(frozen=True, slots=True)
class Column:
    title: str
    numeric: bool = False

    @classmethod
    def texts(cls, *titles: str) -> tuple[Column, ...]:
        return tuple(cls(title) for title in titles)

    @classmethod
    def numbers(cls, *titles: str) -> tuple[Column, ...]:
        return tuple(cls(title, numeric=True) for title in titles)


@dataclass(frozen=True, slots=True)
class Table:
    """The first cell of a row names it. A cell without text was not measured."""

    caption: str
    columns: tuple[Column, ...]
    rows: tuple[tuple[Cell, ...], ...]
    note: str = ""


@dataclass(frozen=True, slots=True)
class Chart:
    """A picture with its title; the legend names the colours that the picture does not name itself."""

    title: str
    svg: Markup
    legend: tuple[tuple[int, str], ...] = ()
    note: str = ""


@dataclass(frozen=True, slots=True)
class Picture:
    """facts: by what it can be filtered, such as ("label", "7"); none where it is not to be."""

    source: str
    alt: str
    title: str
    detail: str
    wrong: bool
    facts: tuple[tuple[str, str], ...] = ()


def png_picture(png: object, alt: str, title: str, detail: str = "", *, wrong: bool = False) -> Picture | None:
    """A picture from base64 text; None where that is not a PNG file. wrong: the model was, and the page marks it."""
    try:
        known = isinstance(png, str) and base64.b64decode(png, validate=True).startswith(PNG)
    except ValueError:
        return None
    return Picture(f"data:image/png;base64,{png}", alt, title, detail, wrong) if known else None


@dataclass(frozen=True, slots=True)
class Gallery:
    """Pictures with their titles.

    wide: each is a row of images, drawn as wide as the page and one below the other. together: so many pictures belong
    together each time, and stay on one line where there is room. answers: JSON of more samples, for filters.
    """

    title: str
    pictures: tuple[Picture, ...]
    note: str = ""
    wide: bool = False
    together: int = 1
    answers: Markup = Markup()  # noqa: RUF009 - a str, and so is not changed

    @classmethod
    def readable(cls, title: str, pictures: Iterable[Picture | None], *, wide: bool = False) -> list[Gallery]:
        kept = tuple(picture for picture in pictures if picture is not None)
        return [cls(title, kept, wide=wide)] if kept else []


@dataclass(frozen=True, slots=True)
class Side:
    """Blocks side by side, where there is room."""

    blocks: tuple[Block, ...]


@dataclass(frozen=True, slots=True)
class Details:
    """Blocks that show on demand."""

    summary: str
    blocks: tuple[Block, ...]


Block = Table | Chart | Gallery | Side | Details


def present(*blocks: Block | None) -> tuple[Block, ...]:
    return tuple(block for block in blocks if block is not None)


@dataclass(frozen=True, slots=True)
class Section:
    """One chapter of a report. id: its anchor, a word. lead: one or two sentences on how to read it."""

    id: str
    title: str
    lead: str
    blocks: tuple[Block, ...]


MOST_BYTES = 2_500_000


def fitted(sections: Sequence[Section], room: int = MOST_BYTES) -> list[Section]:
    """The sections with no more pictures than the room allows. Small galleries stay whole before large ones do."""
    galleries = [gallery for section in sections for block in section.blocks for gallery in _galleries(block)]
    level = _level([sum(len(picture.source) for picture in gallery.pictures) for gallery in galleries], room)
    return [replace(section, blocks=tuple(_cut(block, level) for block in section.blocks)) for section in sections]


def _level(sizes: Sequence[int], room: int) -> float:
    """The most bytes a gallery may have, so that all fit.

    >>> _level([10, 100, 100], 110), _level([10, 20], 100), _level([10], 0)
    (50.0, inf, 0.0)
    """
    left = float(room)
    for i, size in enumerate(sorted(sizes)):
        share = left / (len(sizes) - i)
        if size > share:
            return share
        left -= size
    return float("inf")


def _cut(block: Block, level: float) -> Block:
    if isinstance(block, (Side, Details)):
        return replace(block, blocks=tuple(_cut(inner, level) for inner in block.blocks))
    if not isinstance(block, Gallery):
        return block
    block = replace(block, answers=Markup()) if level == 0 else block  # the page is to have no picture at all
    kept = sum(size <= level for size in accumulate(len(picture.source) for picture in block.pictures))
    if kept == len(block.pictures):
        return block
    note = f"{len(block.pictures) - kept} of {len(block.pictures)} pictures left out"
    note += "." if level == 0 else " to keep the page small; they are in findings.json."
    return replace(block, pictures=block.pictures[:kept], note=f"{block.note} {note}".strip())


def _galleries(block: Block) -> Iterator[Gallery]:
    if isinstance(block, Gallery):
        yield block
    elif isinstance(block, (Side, Details)):
        for inner in block.blocks:
            yield from _galleries(inner)
