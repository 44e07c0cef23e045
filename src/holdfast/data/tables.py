"""Tables that name image files: CSV or Parquet with columns path, label, and optionally group and split."""

from __future__ import annotations

import csv
import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from holdfast.data.folders import SPLIT_FOLDERS, make_files
from holdfast.data.listing import Listing
from holdfast.data.printable import printable
from holdfast.errors import HoldfastError, require, unknown

NEEDED = ("path", "label")
OPTIONAL = ("group", "split")
NUMBER = re.compile(r"[+-]?\d+(\.\d+)?")
UNDECODED = re.compile("[\\udc80-\\udcff]")
"""Bytes that are no UTF-8, as ``surrogateescape`` reads them."""
SHOWN = 3
"""Missing files a message names."""


@dataclass(frozen=True)
class Table:
    """Cells by column, as text, "" where empty; ``lines`` says where each row stands in the file."""

    columns: dict[str, list[str]]
    lines: Sequence[int]
    unit: str = "line"
    problems: tuple[str, ...] = ()


def scan_csv(path: Path, root: Path | None) -> Listing:
    """A CSV table with a header. Paths are relative to root, else to the table's folder."""
    return _scan(path, root, _read_csv(path))


def scan_parquet(path: Path, root: Path | None) -> Listing:
    """A Parquet table. Paths are relative to root, else to the table's folder."""
    return _scan(path, root, _read_parquet(path))


def scan_pictures(path: Path, root: Path | None) -> Listing:
    """Either kind of table as pictures: its rows need no label, and have -1 without one."""
    read = _read_csv if path.suffix.lower() == ".csv" else _read_parquet
    return _scan(path, root, read(path, needed=("path",)), labelled=False)


def read_columns(path: Path, names: Sequence[str]) -> dict[str, list[str]]:
    """Columns of a table by row, as text, "" where empty; upper and lower case are the same."""
    wanted = tuple(name.strip().lower() for name in names)
    table = _read_csv(path, wanted) if path.suffix.lower() == ".csv" else _read_parquet(path, wanted)
    require(not table.problems, f"{printable(path)}: {'; '.join(table.problems)}")
    return {name: table.columns[w] for name, w in zip(names, wanted, strict=True)}


def name_order(names: set[str]) -> list[str]:
    """Names sorted; by value where all are numbers.

    >>> name_order({"10", "9", "2"}), name_order({"10", "9", "b"})
    (['2', '9', '10'], ['10', '9', 'b'])
    """
    if all(NUMBER.fullmatch(name) for name in names):
        return sorted(names, key=lambda name: (float(name), name))
    return sorted(names)


def _scan(table_path: Path, root: Path | None, table: Table, *, labelled: bool = True) -> Listing:
    base = root if root is not None else table_path.parent
    problems = list(table.problems)
    count = len(table.lines)
    usable = [True] * count
    for column in ("path", "label", "split") if labelled else ("path", "split"):
        empty = [i for i, cell in enumerate(table.columns.get(column, ())) if not cell]
        if empty:
            problems.append(
                f"{len(empty)} rows have no {column}, the first at {table.unit} {table.lines[empty[0]]}; "
                "fill the cells or remove the rows"
            )
        for i in empty:
            usable[i] = False
    splits = table.columns.get("split", ["train"] * count)
    for name in sorted({s for s in splits if s and s.lower() not in SPLIT_FOLDERS}):
        rows = [i for i, s in enumerate(splits) if s == name]
        problems.append(f"{unknown('split', name, SPLIT_FOLDERS)} ({table.unit} {table.lines[rows[0]]})")
        for i in rows:
            usable[i] = False

    by_split: dict[str, list[int]] = {"train": []}
    for i in range(count):
        if usable[i]:
            by_split.setdefault(SPLIT_FOLDERS[splits[i].lower()], []).append(i)
    labels = table.columns.get("label", [""] * count)
    classes = name_order({labels[i] for i in by_split["train"]} - {""})
    extra = name_order({labels[i] for rows in by_split.values() for i in rows} - {*classes, ""})
    untrainable = []
    for name in extra:
        i = next(i for rows in by_split.values() for i in rows if labels[i] == name)
        untrainable.append(
            f"label {name!r} ({table.unit} {table.lines[i]}, {splits[i]} split) is not among the training "
            "rows; remove these rows, or add training rows of that class"
        )
    groups = table.columns.get("group", [""] * count)
    group_names = name_order({groups[i] for rows in by_split.values() for i in rows} - {""})
    label_of = {name: k for k, name in enumerate([*classes, *extra])} | {"": -1}
    group_of = {name: k for k, name in enumerate(group_names)} | {"": -1}
    paths = [os.path.join(base, cell) for cell in table.columns["path"]]
    problems += _missing([paths[i] for rows in by_split.values() for i in rows], base)
    return Listing(
        name=printable(table_path.name),
        classes=tuple(map(printable, [*classes, *extra])),
        splits={
            split: replace(
                make_files(
                    [paths[i] for i in rows],
                    [label_of[labels[i]] for i in rows],
                    [group_of[groups[i]] for i in rows],
                ),
                rows=torch.tensor(rows, dtype=torch.int64),
            )
            for split, rows in by_split.items()
        },
        group_names=tuple(map(printable, group_names)),
        notes=tuple(_shared({split: {paths[i] for i in rows} for split, rows in by_split.items()})),
        problems=tuple(problems),
        untrainable=tuple(untrainable),
    )


def _missing(paths: list[str], base: Path) -> list[str]:
    absent = [path for path in paths if not os.path.isfile(path)]
    if not absent:
        return []
    first = ", ".join(printable(path) for path in absent[:SHOWN]) + (", ..." if len(absent) > SHOWN else "")
    return [
        f"{len(absent)} of {len(paths)} files do not exist: {first}; "
        f"paths are taken relative to {printable(base)}: correct them, or give root"
    ]


def _shared(paths: dict[str, set[str]]) -> list[str]:
    """A note for every held-out split that shares files with training: its accuracy would flatter."""
    return [
        f"{len(both)} files are both in the train and the {split} split"
        for split, own in paths.items()
        if split != "train" and (both := own & paths["train"])
    ]


def _read_csv(path: Path, extra: Sequence[str] = (), needed: Sequence[str] = NEEDED) -> Table:
    try:
        # file names need not be UTF-8; surrogateescape hands their bytes through unharmed
        with path.open(newline="", encoding="utf-8-sig", errors="surrogateescape") as file:
            reader = csv.reader(file, strict=True)
            names = next(reader, [])
            check_commas(path, names)
            header = _header(path, names, (*needed, *extra))
            columns: dict[str, list[str]] = {name: [] for name in header if name in (*NEEDED, *OPTIONAL, *extra)}
            lines = []
            long = []
            for row in reader:
                if not row:
                    continue
                lines.append(reader.line_num)
                if len(row) > len(header):
                    long.append(reader.line_num)
                for name, cell in zip(header, row + [""] * (len(header) - len(row)), strict=False):
                    if name in columns:
                        columns[name].append(cell.strip())
    except csv.Error as error:
        raise HoldfastError(f"{printable(path)}, line {reader.line_num}: {error}; mend the table") from error
    except OSError as error:
        raise HoldfastError(f"cannot read {printable(path)}: {error.strerror}") from error
    problems = _garbled(columns, lines)
    if long:
        problems.append(
            f"{len(long)} rows have more cells than the header, the first at line {long[0]}; "
            "put cells that contain commas in quotes"
        )
    return Table(columns, lines, problems=tuple(problems))


def check_commas(path: Path, names: Sequence[str]) -> None:
    """Refuse a CSV file whose first line has its cells parted by something else, as many a spreadsheet writes it."""
    for mark, word in ((";", "semicolons"), ("\t", "tabs")):
        require(
            len(names) != 1 or mark not in names[0],
            f"{printable(path)} seems to have {word} between its cells; save it with commas",
        )


def _garbled(columns: Mapping[str, Sequence[str]], lines: Sequence[int]) -> list[str]:
    """A problem for every column of words, not of file names, with bytes that are no UTF-8."""
    problems = []
    for name, cells in columns.items():
        bad = [i for i, cell in enumerate(cells) if name != "path" and UNDECODED.search(cell)]
        if bad:
            problems.append(
                f"{len(bad)} cells of column {name} are no UTF-8, the first at line {lines[bad[0]]}; "
                "save the table as UTF-8"
            )
    return problems


def _read_parquet(path: Path, extra: Sequence[str] = (), needed: Sequence[str] = NEEDED) -> Table:
    try:
        import pyarrow.parquet as parquet
    except ImportError as error:
        raise HoldfastError(f"reading {printable(path)} needs pyarrow; run: pip install 'holdfast[parquet]'") from error
    try:
        with parquet.ParquetFile(path) as file:
            names = file.schema_arrow.names
            header = _header(path, names, (*needed, *extra))
            known = (*NEEDED, *OPTIONAL, *extra)
            wanted = {name: raw for name, raw in zip(header, names, strict=True) if name in known}
            data = file.read(columns=list(wanted.values()))
    except (OSError, ValueError) as error:  # pyarrow's errors are of these kinds
        raise HoldfastError(f"cannot read {printable(path)} as Parquet: {error}; write it again") from error
    columns = {name: [cell_text(cell) for cell in data.column(raw).to_pylist()] for name, raw in wanted.items()}
    return Table(columns, range(1, data.num_rows + 1), unit="row")


def _header(path: Path, names: Sequence[str], needed: Sequence[str]) -> list[str]:
    """Column names as they are looked up, once those needed are there, each once."""
    header = [name.strip().lower() for name in names]
    there = ", ".join(printable(name) for name in names) or "none"
    for name in needed:
        if name not in header:
            raise HoldfastError(
                f"{printable(path)} has no column {name!r}; its columns are: {there}. "
                f"Needed: {', '.join(needed)}; optional: {', '.join(OPTIONAL)}"
            )
    for name in (*NEEDED, *OPTIONAL, *needed):
        if header.count(name) > 1:
            raise HoldfastError(f"{printable(path)} has the column {name!r} more than once ({there}); keep one")
    return header


def cell_text(cell: Any) -> str:
    """A typed cell as a CSV would show it; missing numbers come as NaN from some writers."""
    if cell is None or cell != cell:
        return ""
    if isinstance(cell, float) and cell.is_integer():
        cell = int(cell)
    return (os.fsdecode(cell) if isinstance(cell, bytes) else str(cell)).strip()
