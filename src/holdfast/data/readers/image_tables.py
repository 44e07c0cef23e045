"""Tables that name image files: CSV or Parquet with columns path, label, and optionally group and split, or with others
that ``columns`` names."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from holdfast.data.listing import SPLIT_FOLDERS, Listing, ReaderOptions, list_files
from holdfast.data.tables import TABLES, lower_case_header, name_order, read_table
from holdfast.errors import brief, cut, require, unknown
from holdfast.parts import reader
from holdfast.printable import printable
from holdfast.types import Note

NEEDED = ("path", "label")
OPTIONAL = ("group", "split")
SHOWN = 3
"""Missing files a message names."""


def list_unlabelled_rows(path: Path, options: ReaderOptions) -> Listing:
    """A table whose rows need no label, and have -1 without one."""
    return _scan(path, options, ("path",))


@reader(
    "table",
    about="A CSV or Parquet table with the columns path and label, and group and split where there are some.",
    suffixes=TABLES,
    takes=("columns", "group"),
    unlabelled=list_unlabelled_rows,
    order=810,
)
def read_image_table(path: Path, options: ReaderOptions) -> Listing:
    """Paths are relative to root, else to the table's folder."""
    return _scan(path, options, NEEDED)


def _renamed(path: Path, chosen: Mapping[str, str], needed: Sequence[str], names: Sequence[str]) -> list[str]:
    """Columns by what they are: those that were chosen for a role instead of one of its name."""
    own = {role: column.strip().lower() for role, column in chosen.items()}
    lower_case_header(path, tuple(own.values()), names)
    role_of = {column: role for role, column in own.items()}
    once = len(role_of) == len(own)
    require(once, f"columns gives one column two roles: {', '.join(own.values())}; give each a column of its own")
    found = [role_of.get(name, "" if name in own else name) for name in (name.strip().lower() for name in names)]
    optional = [name for name in (*NEEDED, *OPTIONAL) if name not in needed]
    hint = ". Say which is which: --columns image=FILE,label=CLASS"
    lower_case_header(path, needed, found, optional=optional, hint=f"{hint} ({', '.join(names)})" if own else hint)
    return found


def _scan(table_path: Path, options: ReaderOptions, needed: Sequence[str]) -> Listing:
    root = options.root
    chosen = {"path" if role == "image" else role: column for role, column in options.columns.items()}
    chosen |= {"group": options.group} if options.group else {}
    header = partial(_renamed, table_path, chosen, needed)
    table = read_table(table_path, header=header, text=(*NEEDED, *OPTIONAL))
    base = root if root is not None else table_path.parent
    problems, count = list(table.problems), len(table.lines)
    unusable: set[int] = set()
    for column in (*needed, "split"):
        empty = [i for i, cell in enumerate(table.text.get(column, ())) if not cell]
        if empty:
            where = f"{table.unit} {table.lines[empty[0]]}; fill the cells or remove the rows"
            problems.append(f"{len(empty)} rows have no {column}, the first at {where}")
        unusable.update(empty)
    splits = table.text.get("split", ["train"] * count)
    for name in sorted({s for s in splits if s and s.lower() not in SPLIT_FOLDERS}):
        rows = [i for i, s in enumerate(splits) if s == name]
        problems.append(f"{unknown('split', name, SPLIT_FOLDERS)} ({table.unit} {table.lines[rows[0]]})")
        unusable.update(rows)
    by_split: dict[str, list[int]] = {"train": []}
    for i in range(count):
        if i not in unusable:
            by_split.setdefault(SPLIT_FOLDERS[splits[i].lower()], []).append(i)
    labels = table.text.get("label", [""] * count)
    groups = table.text.get("group", [""] * count)
    paths = [os.path.join(base, cell) for cell in table.text["path"]]
    trained_on = {paths[i] for i in by_split["train"]}
    trained = {labels[i] for i in by_split["train"]} | {""}
    extra = {labels[i]: i for rows in reversed(by_split.values()) for i in reversed(rows) if labels[i] not in trained}
    used = [paths[i] for rows in by_split.values() for i in rows]
    if absent := [path for path in used if not os.path.isfile(path)]:
        first = ", ".join(cut(printable(path)) for path in absent[:SHOWN]) + (", ..." if len(absent) > SHOWN else "")
        remedy = f"paths are taken relative to {printable(base)}: correct them, or give root"
        problems.append(f"{len(absent)} of {len(used)} files do not exist: {first}; {remedy}")
    notes = [  # the accuracy of a held-out split that shares files with training would be too high
        Note(
            "files-in-two-splits",
            f"{len(both)} files are both in the train and the {split} split",
            "list each file once, or accuracy on the held-out split is too high",
            "warning",
        )
        for split, rows in by_split.items()
        if split != "train" and (both := trained_on & {paths[i] for i in rows})
    ]
    # Absolute paths were meant so; ../ may come from somebody who would like other files to be read.
    if above := [cell for cell in table.text["path"] if os.path.normpath(cell).split(os.sep)[0] == os.pardir]:
        text = f"{len(above)} paths leave {printable(base)} by ../, such as {cut(printable(above[0]))}"
        notes.append(Note("paths-leave-folder", text, "confine refuses them", "warning"))
    remedy = "is not among the training rows; remove these rows, or add training rows of that class"
    untrainable = [
        f"label {brief(name)} ({table.unit} {table.lines[i]}, {splits[i]} split) {remedy}"
        for name, i in ((name, extra[name]) for name in name_order({*extra}))
    ]
    listed = {split: [(paths[i], labels[i], groups[i]) for i in rows] for split, rows in by_split.items()}
    said: dict[str, Any] = {"notes": notes, "problems": problems, "untrainable": untrainable}
    said["attribute"] = chosen.get("group", "")
    return list_files(table_path.name, listed, table_rows=by_split, **said)
