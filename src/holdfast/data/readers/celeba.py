"""CelebA (Liu et al., 2015): list_attr_celeba, a table of 40 attributes, with images in img_align_celeba.

The published .txt (a count, the names, then rows of 1 and -1) or the .csv of its mirrors.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

from holdfast.data.listing import SPLITS, Listing, ReaderOptions, Row, list_files, text_lines
from holdfast.errors import HoldfastError, require, require_known
from holdfast.parts import reader
from holdfast.printable import printable

TABLE = "list_attr_celeba"
PARTITION = "list_eval_partition"
IMAGES = ("img_align_celeba/img_align_celeba", "img_align_celeba", "Img/img_align_celeba")
PLACES = ("", "Anno", "Eval")
"""Folders of the tables: flat, or as its authors sort them."""
LABEL, GROUP = "Blond_Hair", "Male"
"""The attributes that studies of group robustness take."""


def recognised(folder: Path) -> bool:
    return _table(folder, TABLE) is not None


@reader(
    "celeba",
    about="CelebA: faces with 40 attributes; blond hair by default, with gender as the group.",
    names=("celeba",),
    recognises=recognised,
    takes=("label", "group"),
    order=54,
)
def read_celeba(source: str | Path, options: ReaderOptions) -> Listing:
    """Two classes, without and with an attribute, and two groups, by another. All names are the table's own."""
    folder = options.published(source, ("celeba", "CelebA", "celebA", ""), recognised)
    path = _table(folder, TABLE)
    assert path is not None  # or it were not recognised
    names, rows = _attributes(path)
    chosen = (options.label or LABEL, options.group or GROUP)
    for attribute in chosen:
        require_known("attribute of CelebA", attribute, names)
    images = next((folder / name for name in IMAGES if (folder / name).is_dir()), None)
    if images is None:
        raise HoldfastError(f"{printable(folder)} has no folder img_align_celeba; unpack the images there")
    there = {entry.name for entry in os.scandir(images)}
    lost = [name for name, _ in rows if name not in there]
    first = printable(lost[0]) if lost else ""
    problems = [f"{len(lost)} images of {path.name} are not in {images.name}, the first is {first}"] if lost else []
    splits = _partition(folder, [name for name, _ in rows])
    classes, groups = ((f"not {attribute}", attribute) for attribute in chosen)
    columns = [names.index(attribute) for attribute in chosen]
    found: dict[str, list[Row]] = {}
    for (name, values), number in zip(rows, splits, strict=True):
        label, group = (own[values[k] > 0] for own, k in zip((classes, groups), columns, strict=True))
        found.setdefault(SPLITS[number], []).append((str(images / name), label, group))
    word = chosen[1].lower().replace("_", " ")
    return list_files("celeba", found, classes=classes, groups=groups, attribute=word, problems=problems)


def _table(folder: Path, stem: str) -> Path | None:
    places = (folder / place / (stem + end) for place in PLACES for end in (".txt", ".csv"))
    return next((path for path in places if path.is_file()), None)


def _attributes(path: Path) -> tuple[list[str], list[tuple[str, bytes]]]:
    """(names of the attributes, [(image, a byte per attribute, 1 where it has it)])."""
    lines = text_lines(path, "take the published file")
    if path.suffix == ".csv":
        header, body = (lines or [""])[0].split(",")[1:], [line.split(",") for line in lines[1:]]
    else:
        header, body = (lines[1].split() if len(lines) > 1 else []), [line.split() for line in lines[2:]]
    header = [name.strip() for name in header]
    rows = []
    for number, cells in enumerate(body, start=len(lines) - len(body) + 1):
        if len(cells) != len(header) + 1 or not set(cells[1:]) <= {"1", "-1"}:
            expected = f"an image and {len(header)} values of 1 or -1; take the published file"
            raise HoldfastError(f"line {number} of {printable(path)} is not {expected}")
        rows.append((cells[0], bytes(cell == "1" for cell in cells[1:])))
    require(bool(header and rows), f"{printable(path)} holds no attributes or no images; take the published file")
    return header, rows


def _partition(folder: Path, images: Sequence[str]) -> list[int]:
    """0 train, 1 val, 2 test of every image; all training where there is no table."""
    path = _table(folder, PARTITION)
    if path is None:
        return [0] * len(images)
    split_of = {}
    for number, line in enumerate(text_lines(path, "take the published file"), start=1):
        cells = line.replace(",", " ").split()
        if len(cells) == 2 and cells[1] in ("0", "1", "2"):
            split_of[cells[0]] = int(cells[1])
        elif not (number == 1 and path.suffix == ".csv"):
            raise HoldfastError(f"line {number} of {printable(path)} is not an image and 0, 1 or 2; fix it")
    lost = [name for name in images if name not in split_of]
    if lost:
        raise HoldfastError(f"{printable(path)} lacks {len(lost)} images, such as {printable(lost[0])}; fix it")
    return [split_of[name] for name in images]
