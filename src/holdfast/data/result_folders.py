"""Where results may be written: not into the data, and not among files of somebody else. Open this file to change which
folders every command that fills one refuses."""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path
from typing import Final

from holdfast.data.listing import SPLIT_FOLDERS
from holdfast.errors import require
from holdfast.files import at_home, reading
from holdfast.printable import printable

LOGS: Final = frozenset({".log", ".txt", ".out", ".err"})
"""What a shell or a scheduler may have written into the folder of a result before it begins."""


def refuse_foreign(out: str | Path, own: Iterable[str], *, data: object = None) -> None:
    """Refuse a folder for results that holds other files, and one in the data, where it would be taken for a class.

    own: patterns of what the command itself writes; a folder that has one of them is its own, but never one in the
    data, where a class may be called so. Hidden files and logs may be there. data: what the results are of; only the
    path of a folder matters.
    """
    folder = Path(out)
    with reading():
        if isinstance(data, str | Path) and os.path.isdir(at_home(data)):
            _refuse_inside(folder, at_home(data))
        if any(True for pattern in own for _ in folder.glob(pattern)):
            return
        entries = [*folder.iterdir()] if folder.is_dir() else []
        foreign = sorted(p.name for p in entries if p.name[0] != "." and (p.is_dir() or p.suffix not in LOGS))
    shown = printable(", ".join(foreign[:3])) + (", ..." if foreign[3:] else "")
    what = f"{folder} holds other files ({shown}), and no result of this command"
    require(not foreign, f"{what}; choose a new or an empty folder with --out")


def _refuse_inside(folder: Path, data: Path) -> None:
    place, source = folder.resolve(), data.resolve()
    if not place.is_relative_to(source):
        return
    remedy = "where results would be taken for classes; choose an --out outside of it"
    require(place != source, f"{folder} is the folder of the data, {remedy}")
    split = {entry.name for entry in os.scandir(source) if entry.is_dir() and entry.name.lower() in SPLIT_FOLDERS}
    beside = split and place.relative_to(source).parts[0] not in split  # nothing is read there
    require(bool(beside), f"{folder} lies in the folder of the data, {data}, {remedy}")
