"""Waterbirds (Sagawa et al., 2020): metadata.csv with img_filename, y, split and place."""

from __future__ import annotations

import csv
from functools import partial
from pathlib import Path

from holdfast.data.listing import SPLITS, Listing, ReaderOptions, Row, list_files
from holdfast.data.tables import lower_case_header, read_table
from holdfast.parts import reader
from holdfast.printable import printable

TABLE = "metadata.csv"
NEEDED = ("img_filename", "y", "split", "place")
CLASSES = ("landbird", "waterbird")
PLACES = ("land", "water")
SHOWN = 3


def recognised(folder: Path) -> bool:
    """Whether the table has the set's own columns; other sets have a metadata.csv too."""
    try:
        with (folder / TABLE).open(newline="", encoding="utf-8", errors="replace") as file:
            return set(NEEDED) <= set(next(csv.reader(file), []))
    except (OSError, csv.Error):
        return False


@reader(
    "waterbirds",
    about="Waterbirds: landbirds and waterbirds, most of them before their own background; groups are backgrounds.",
    names=("waterbirds",),
    recognises=recognised,
    order=53,
)
def read_waterbirds(source: str | Path, options: ReaderOptions) -> Listing:
    folder = options.published(source, ("waterbirds", "waterbird_complete95_forest2water2", ""), recognised)
    table = read_table(folder / TABLE, header=partial(lower_case_header, folder / TABLE, NEEDED), text=NEEDED)
    rows: dict[str, list[Row]] = {split: [] for split in SPLITS}
    problems = list(table.problems)
    for line, name, *cells in zip(table.lines, *(table.text[column] for column in NEEDED), strict=True):
        label, split, place = (int(cell) if cell.isdecimal() else -1 for cell in cells)
        if label not in (0, 1) or place not in (0, 1) or split not in (0, 1, 2) or not name:
            rule = "y and place must be 0 or 1, split 0, 1 or 2, and img_filename not empty; correct it"
            problems.append(f"line {line} of {TABLE}: {rule}")
        else:
            rows[SPLITS[split]].append((str(folder / name), CLASSES[label], PLACES[place]))
    lost = [path for own in rows.values() for path, _, _ in own if not Path(path).is_file()]
    if lost:
        first = ", ".join(map(printable, lost[:SHOWN]))
        problems.append(f"{len(lost)} files of {TABLE} do not exist: {first}; unpack the archive again")
    rows = {split: own for split, own in rows.items() if own}
    return list_files("waterbirds", rows, classes=CLASSES, groups=PLACES, attribute="background", problems=problems)
