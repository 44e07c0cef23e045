"""How many pictures a page holds: all share one budget of bytes, and what was left out is named in its place."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from holdfast.reports.blocks import Block, Details, Gallery, Section, Side

MOST_BYTES = 2_500_000
"""For all pictures of a page together."""


def fitted(sections: Sequence[Section], room: int = MOST_BYTES) -> list[Section]:
    """The sections with no more pictures than the room allows. Small galleries stay whole before large ones do."""
    level = _level([_size(gallery) for section in sections for gallery in _galleries(section.blocks)], room)
    return [replace(section, blocks=_cut(section.blocks, level)) for section in sections]


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


def _cut(blocks: Sequence[Block], level: float) -> tuple[Block, ...]:
    made: list[Block] = []
    for block in blocks:
        if isinstance(block, (Side, Details)):
            made.append(replace(block, blocks=_cut(block.blocks, level)))
        else:
            made.append(_short(block, level) if isinstance(block, Gallery) else block)
    return tuple(made)


def _short(gallery: Gallery, level: float) -> Gallery:
    kept, room = [], level
    for picture in gallery.pictures:
        room -= len(picture.source)
        if room < 0:
            break
        kept.append(picture)
    left_out = len(gallery.pictures) - len(kept)
    if not left_out:
        return gallery
    note = f"{left_out} of {len(gallery.pictures)} pictures left out"
    note += "." if level == 0 else " to keep the page small; they are in findings.json."
    return replace(gallery, pictures=tuple(kept), note=f"{gallery.note} {note}".strip())


def _galleries(blocks: Sequence[Block]) -> Iterator[Gallery]:
    for block in blocks:
        if isinstance(block, (Side, Details)):
            yield from _galleries(block.blocks)
        elif isinstance(block, Gallery):
            yield block


def _size(gallery: Gallery) -> int:
    return sum(len(picture.source) for picture in gallery.pictures)
