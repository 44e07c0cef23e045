"""Waterbirds (Sagawa et al., 2020): metadata.csv with img_filename, y, split and place."""

from __future__ import annotations

import csv
from pathlib import Path

from holdfast.data.folders import make_files
from holdfast.data.listing import Listing
from holdfast.data.printable import printable
from holdfast.errors import HoldfastError

TABLE = "metadata.csv"
NEEDED = ("img_filename", "y", "split", "place")
CLASSES = ("landbird", "waterbird")
PLACES = ("land", "water")
SPLITS = ("train", "val", "test")
SHOWN = 3


def recognised(folder: Path) -> bool:
    """Whether the table has the set's own columns; other sets have a metadata.csv too."""
    try:
        with (folder / TABLE).open(newline="", encoding="utf-8", errors="replace") as file:
            return set(NEEDED) <= set(next(csv.reader(file), []))
    except (OSError, csv.Error):
        return False


def scan(folder: Path) -> Listing:
    """Groups are places."""
    table = folder / TABLE
    rows: dict[str, list[tuple[str, int, int]]] = {split: [] for split in SPLITS}
    problems = []
    try:
        with table.open(newline="", encoding="utf-8") as file:
            reader = csv.DictReader(file, strict=True)
            absent = [name for name in NEEDED if name not in (reader.fieldnames or ())]
            if absent:
                raise HoldfastError(f"{printable(table)} has no column {absent[0]!r}; needed: {', '.join(NEEDED)}")
            for row in reader:
                label, split, place = (_number(row[name]) for name in ("y", "split", "place"))
                if label not in (0, 1) or place not in (0, 1) or split not in (0, 1, 2) or not row["img_filename"]:
                    problems.append(
                        f"line {reader.line_num} of {TABLE}: y and place must be 0 or 1, split 0, 1 or 2, and "
                        "img_filename not empty; correct it"
                    )
                    continue
                rows[SPLITS[split]].append((str(folder / row["img_filename"]), label, place))
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise HoldfastError(f"cannot read {printable(table)}: {error}; take the published file") from error
    lost = [path for own in rows.values() for path, _, _ in own if not Path(path).is_file()]
    if lost:
        first = ", ".join(map(printable, lost[:SHOWN]))
        problems.append(f"{len(lost)} files of {TABLE} do not exist: {first}; unpack the archive again")
    return Listing(
        name="waterbirds",
        classes=CLASSES,
        splits={
            split: make_files([p for p, _, _ in own], [y for _, y, _ in own], [g for _, _, g in own])
            for split, own in rows.items()
            if own or split == "train"
        },
        group_names=PLACES,
        problems=tuple(problems),
    )


def _number(cell: str | None) -> int:
    return int(cell) if cell is not None and cell.strip().isdigit() else -1
