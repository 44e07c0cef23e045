"""CSV and Parquet tables: read, checked and written here and nowhere else. Open this to change what a table may be.

Nothing here knows what a column means: see the readers of image tables, of predictions and of group columns.
"""

from __future__ import annotations

import csv
import io
import os
import re
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from holdfast.data.array_files import refusing
from holdfast.errors import HoldfastError, cut, require
from holdfast.files import replacing, write_atomic
from holdfast.printable import one_line, printable

if TYPE_CHECKING:
    import numpy as np

    Floats = np.ndarray[Any, np.dtype[np.float32]]

TABLES = (".csv", ".parquet")
"""Ends of the names of files that :func:`read_table` reads and :func:`write_table` writes."""
NUMBER = re.compile(r"[+-]?\d+(\.\d+)?")
UNDECODED = re.compile("[\\udc80-\\udcff]")
"""Bytes that are not UTF-8, as ``surrogateescape`` reads them."""
FORMULA = ("=", "+", "-", "@", "＝", "＋", "－", "＠")
"""A spreadsheet runs a cell that starts with one of these as a formula; some trim it first, some take wide signs."""

Cell = str | int | float | None
Header = Callable[[Sequence[str]], Sequence[str]]
"""From the names of a file's columns to those they are looked up by, "" for columns that are ignored."""


@dataclass(frozen=True, eq=False)
class TableCells:
    """What a table holds.

    text: cells of columns of text, "" where empty. lines: where each row is in the file, counted in ``unit``.
    number_names, numbers: columns of numbers and their cells (N, S) as float32, NaN where a cell is not a number.
    left_out: columns that are neither, with their first cell. problems: what is wrong with single rows and cells.
    """

    text: dict[str, list[str]]
    lines: Sequence[int]
    number_names: tuple[str, ...]
    numbers: Floats
    left_out: dict[str, str]
    unit: str = "line"
    problems: tuple[str, ...] = ()


def read_table(
    path: Path, *, header: Header, text: Collection[str], numbers: bool = False, strict: bool = False
) -> TableCells:
    """A CSV file with a header, or a Parquet file.

    header: gives the columns their names, or refuses them. text: columns to read as text, by these names.
    numbers: whether other columns that begin with a number are read too. strict: rows of another length and text that
    is not UTF-8 are refused at once; otherwise they are listed as problems, and short rows are filled up.
    """
    read = _read_csv if path.suffix.lower() == ".csv" else _read_parquet
    return read(path, header, text, numbers, strict)


def read_columns(path: Path, names: Sequence[str]) -> dict[str, list[str]]:
    """Columns of a table by row, as text, "" where empty; upper and lower case are the same."""
    wanted = tuple(name.strip().lower() for name in names)
    table = read_table(path, header=partial(lower_case_header, path, wanted), text=wanted)
    require(not table.problems, f"{printable(path)}: {'; '.join(table.problems)}")
    return {name: table.text[w] for name, w in zip(names, wanted, strict=True)}


def lower_case_header(
    path: Path, needed: Sequence[str], names: Sequence[str], *, optional: Sequence[str] = (), hint: str = ""
) -> list[str]:
    """Column names in lower case, once those needed are there and no known one is there twice."""
    header = [name.strip().lower() for name in names]
    there = cut(", ".join(printable(name) for name in names)) or "none"
    for name in needed:
        if name not in header:
            more = f"; optional: {', '.join(optional)}" if optional else ""
            there += f". Needed: {', '.join(needed)}"
            raise HoldfastError(f"{printable(path)} has no column {name!r}; its columns are: {there}{more}{hint}")
    for name in (*needed, *optional):
        if header.count(name) > 1:
            raise HoldfastError(f"{printable(path)} has the column {name!r} more than once ({there}); keep one")
    return header


def name_order(names: set[str]) -> list[str]:
    """Names sorted; by value where all are numbers.

    >>> name_order({"10", "9", "2"}), name_order({"10", "9", "b"})
    (['2', '9', '10'], ['10', '9', 'b'])
    """
    if all(NUMBER.fullmatch(name) for name in names):
        return sorted(names, key=lambda name: (float(name), name))
    return sorted(names)


def cell_text(cell: Any) -> str:
    """A typed cell as a CSV would show it; missing numbers come as NaN from some writers."""
    if cell is None or cell != cell:
        return ""
    if isinstance(cell, float) and cell.is_integer():
        cell = int(cell)
    return (os.fsdecode(cell) if isinstance(cell, bytes) else str(cell)).strip()


def _read_csv(path: Path, header: Header, text: Collection[str], numbers: bool, strict: bool) -> TableCells:
    import numpy as np

    lines: list[int] = []
    long: list[int] = []
    numeric: list[int] = []
    scores: list[Floats] = []
    left_out: dict[str, str] = {}
    try:
        # file names need not be UTF-8; surrogateescape hands their bytes through unharmed
        errors = "strict" if strict else "surrogateescape"
        with path.open(newline="", encoding="utf-8-sig", errors=errors) as file:
            reader = csv.reader(file, strict=True)
            raw = next(reader, [])
            for mark, word in ((";", "semicolons"), ("\t", "tabs")):  # as many spreadsheets write them
                wrong = len(raw) == 1 and mark in raw[0]
                require(not wrong, f"{printable(path)} seems to have {word} between its cells; save it with commas")
            names = header(raw)
            words: dict[int, list[str]] = {i: [] for i, name in enumerate(names) if name in text}
            for row in filter(None, reader):
                short = len(names) - len(row)
                if short and strict:
                    where = f"{printable(path)}, line {reader.line_num}"
                    raise HoldfastError(f"{where}: {len(row)} cells under {len(names)} columns; fix the row")
                if short < 0:
                    long.append(reader.line_num)
                row += [""] * short
                if not lines:  # the first row says which columns hold numbers
                    others = [i for i in range(len(names)) if i not in words]
                    numeric = [i for i in others if numbers and names[i] and _is_number(row[i])]
                    left_out = {names[i]: row[i] for i in others if i not in numeric}
                if numbers:  # at once: a thousand scores for each of fifty thousand images stay four bytes each
                    scores.append(_floats([row[i] for i in numeric]))
                for i, cells in words.items():
                    cells.append(row[i].strip())
                lines.append(reader.line_num)
    except csv.Error as error:
        raise HoldfastError(f"{printable(path)}, line {reader.line_num}: {error}; fix the table") from error
    except UnicodeDecodeError as error:
        raise HoldfastError(f"{printable(path)} is not UTF-8 ({error.reason}); save it as UTF-8") from error
    except OSError as error:
        raise HoldfastError(f"cannot read {printable(path)}: {error.strerror}") from error
    problems = []
    for i, cells in words.items():
        bad = [line for line, cell in zip(lines, cells, strict=True) if names[i] != "path" and UNDECODED.search(cell)]
        if bad:
            where = f"the first at line {bad[0]}; save the table as UTF-8"
            problems.append(f"{len(bad)} cells of column {names[i]} are not UTF-8, {where}")
    if long:
        first = f"line {long[0]}; put cells that contain commas in quotes"
        problems.append(f"{len(long)} rows have more cells than the header, the first at {first}")
    matrix = np.stack(scores) if scores else np.zeros((0, len(numeric)), dtype=np.float32)
    columns = {names[i]: cells for i, cells in words.items()}
    return TableCells(columns, lines, tuple(names[i] for i in numeric), matrix, left_out, problems=tuple(problems))


def _floats(cells: Sequence[str]) -> Floats:
    import numpy as np

    try:
        return np.array(cells, dtype=np.float32)
    except ValueError:  # which columns have to hold numbers is not known here
        return np.array([cell if _is_number(cell) else "nan" for cell in cells], dtype=np.float32)


def _is_number(cell: str) -> bool:
    try:
        float(cell)
    except ValueError:
        return False
    return True


def _read_parquet(path: Path, header: Header, text: Collection[str], numbers: bool, strict: bool) -> TableCells:
    import numpy as np

    try:
        import pyarrow
        import pyarrow.parquet as parquet
    except ImportError as error:
        raise HoldfastError(f"reading {printable(path)} needs pyarrow; run: pip install 'holdfast[parquet]'") from error
    words, scores, left_out = {}, {}, {}
    with refusing(f"{printable(path)} as Parquet"), np.errstate(over="ignore"):
        with parquet.ParquetFile(path) as file:
            raw = file.schema_arrow.names
            names = list(header(raw))
            wanted = [i for i, name in enumerate(names) if numbers or name in text]
            data = file.read(columns=None if numbers else [raw[i] for i in wanted])
        for i in wanted:
            name, column = names[i], data.column(i) if numbers else data.column(raw[i])
            if name in text:
                words[name] = [cell_text(cell) for cell in column.to_pylist()]
            elif name and (pyarrow.types.is_floating(column.type) or pyarrow.types.is_integer(column.type)):
                scores[name] = column.to_numpy().astype(np.float32)
            else:
                left_out[name] = cell_text(column[0].as_py()) if len(column) else ""
    matrix = np.stack(list(scores.values()), 1) if scores else np.zeros((data.num_rows, 0), np.float32)
    return TableCells(words, range(1, data.num_rows + 1), tuple(scores), matrix, left_out, unit="row")


def require_writable(suffix: str) -> None:
    """Refuse a kind of table that could not be written, before any work is done for it."""
    require(suffix in TABLES, f"tables are written as {' or '.join(TABLES)}, got {suffix!r}")
    able = suffix != ".parquet" or find_spec("pyarrow") is not None
    require(able, "writing Parquet needs pyarrow; run: pip install 'holdfast[parquet]', or write CSV")


def write_table(path: Path, columns: Mapping[str, Sequence[Cell]], *, types: Mapping[str, type] | None = None) -> None:
    """Columns of one length as CSV or Parquet, by the end of the name, whole or not at all.

    types: int or float for columns of numbers in Parquet; all others are text. In a CSV no cell is a formula to a
    spreadsheet, and each is on one line.
    """
    if path.suffix.lower() != ".parquet":
        write_atomic(path, table_text(columns).encode("utf-8"))
        return
    import pyarrow
    from pyarrow import parquet

    arrow = {int: pyarrow.int64(), float: pyarrow.float64()}
    kinds = {name: arrow[kind] for name, kind in (types or {}).items()}
    arrays = {name: pyarrow.array(cells, kinds.get(name, pyarrow.string())) for name, cells in columns.items()}
    sink = pyarrow.BufferOutputStream()
    parquet.write_table(pyarrow.table(arrays), sink)
    write_atomic(path, sink.getvalue().to_pybytes())


def table_text(columns: Mapping[str, Sequence[Cell]]) -> str:
    """Columns of one length as CSV, safe to open in a spreadsheet; None is an empty cell."""
    lengths = {name: len(values) for name, values in columns.items()}
    require(len(set(lengths.values())) <= 1, f"columns must be as long as each other, got {lengths}")
    file = io.StringIO()
    writer = csv.writer(file, lineterminator="\n")
    writer.writerow(map(spreadsheet_cell, columns))
    writer.writerows([spreadsheet_cell(value) for value in row] for row in zip(*columns.values(), strict=True))
    return file.getvalue()


def spreadsheet_cell(value: Cell) -> str:
    """Text on one line that is not a formula; numbers in full.

    >>> spreadsheet_cell("=1+1"), spreadsheet_cell(-0.25), spreadsheet_cell(None)
    ("'=1+1", '-0.25', '')
    """
    if value is None:
        return ""
    if not isinstance(value, str):
        return repr(value)
    text = one_line(value)
    return f"'{text}" if text.lstrip().startswith(FORMULA) else text


@contextmanager
def growing_table(path: Path, columns: Sequence[str]) -> Iterator[Callable[[Sequence[object]], object]]:
    """Write a CSV row by row: yields the function that takes a row. The file appears when all rows are there.

    Cells are written as they are, so that paths in them can be looked up again.
    """
    with (
        replacing(path) as temporary,
        temporary.open("w", encoding="utf-8", errors="surrogateescape", newline="") as file,
    ):
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(columns)
        yield writer.writerow
