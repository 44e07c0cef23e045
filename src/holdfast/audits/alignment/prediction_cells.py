"""Cells of a predictions file: words by column, scores as numbers. Rows are parsed one by one, so that a thousand
scores for each of fifty thousand images stay four bytes each."""

from __future__ import annotations

import csv
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np
import torch
from torch import Tensor

from holdfast.audits.alignment.classes import ClassMap, simple, targets
from holdfast.data.printable import printable
from holdfast.data.tables import cell_text, check_commas
from holdfast.errors import HoldfastError, require, unknown
from holdfast.files import exists

WORDS: Final = ("id", "path", "position", "label", "prediction", "group")
"""Columns that say something of a row; known in any case."""
IGNORED: Final = ("split", "confidence", "correct")
PREDICT: Final = {"picture": "path", "label": "prediction", "confidence": "", "unknown": "", "reason": ""}
"""Columns of a file of ``holdfast predict``, and what each is here: its label is an answer, not the truth. Only all of
them together are taken so: in files of others ``label`` keeps its meaning."""


@dataclass(frozen=True, eq=False)
class Cells:
    """words: text cells by column. names: numeric columns; scores: (N, S) what they hold, NaN where that is no number.
    lines: where each row stands. left_out: columns that are neither, and what the first row has there."""

    words: dict[str, list[str]]
    names: tuple[str, ...]
    scores: np.ndarray[Any, np.dtype[np.float32]]
    lines: Sequence[int]
    left_out: dict[str, str]


def read_cells(path: str | Path, *, extra: Sequence[str] = ()) -> Cells:
    """A CSV or Parquet file. extra: further columns of words."""
    path = Path(path)
    require(exists(path) and path.is_file(), f"predictions {printable(path)} do not exist; give a CSV or Parquet file")
    suffix = path.suffix.lower()
    require(suffix in (".csv", ".parquet"), f"predictions {printable(path)} must be .csv or .parquet, not {suffix!r}")
    return _read_csv(path, extra) if suffix == ".csv" else _read_parquet(path, extra)


def class_indices(
    cells: Cells, column: str, classes: tuple[str, ...], name: str, class_map: ClassMap | None = None
) -> Tensor:
    """(N,) class of each cell of a column of words: by name, spelled as columns may be, or by number where no cell is
    a name.

    class_map: which other words stand for a class.
    """
    require(column in cells.words, f"{name} has no column {column!r}; add one, or give the data it belongs to")
    words = cells.words[column]
    empty = next((line for cell, line in zip(words, cells.lines, strict=True) if not cell), None)
    require(empty is None, f"{name}, line {empty}: no {column}; fill the cell or remove the row")
    known = {cls: i for i, cls in enumerate(classes)}
    for cls, target in (class_map or {}).items():
        for other in targets(target):
            known[str(other)] = known[cls]
    spelled = list(known)
    loose: dict[str, set[int]] = {}
    for cls, i in known.items():
        loose.setdefault(simple(cls), set()).add(i)
    known = {spelling: places.pop() for spelling, places in loose.items() if len(places) == 1} | known
    words = [word if word in known else simple(word) for word in words]
    if not known.keys() & set(words) and all(word.isdecimal() and int(word) < len(classes) for word in words):
        return torch.tensor([int(word) for word in words])
    for word, said, line in zip(words, cells.words[column], cells.lines, strict=True):
        if word not in known:
            raise HoldfastError(f"{name}, line {line}: {unknown(column, printable(said), spelled)}")
    return torch.tensor([known[word] for word in words])


def _read_csv(path: Path, extra: Sequence[str]) -> Cells:
    try:
        with path.open(newline="", encoding="utf-8-sig") as file:
            reader = csv.reader(file, strict=True)
            names = next(reader, [])
            check_commas(path, names)
            header = _header(path, names, extra)
            first = next((row for row in reader if row), [])
            numeric = [i for i, name in enumerate(header) if name and _is_number(first[i : i + 1])]
            columns = _Columns(path, header, [i for i in numeric if not _is_word(header[i], extra)], extra)
            if first:
                columns.add(first, reader.line_num)
            for row in reader:
                if row:
                    columns.add(row, reader.line_num)
    except csv.Error as error:
        raise HoldfastError(f"{printable(path)}, line {reader.line_num}: {error}; mend the table") from error
    except UnicodeDecodeError as error:
        raise HoldfastError(f"{printable(path)} is not UTF-8 ({error.reason}); save it as UTF-8") from error
    except OSError as error:
        raise HoldfastError(f"cannot read {printable(path)}: {error.strerror}") from error
    return columns.cells()


class _Columns:
    """Rows of a CSV file on their way into columns."""

    def __init__(self, path: Path, header: list[str], scores: list[int], extra: Sequence[str]) -> None:
        self.path, self.header, self.scores = path, header, scores
        self.left: dict[str, str] = {}
        self.words: dict[int, list[str]] = {i: [] for i, name in enumerate(header) if _is_word(name, extra)}
        self.rows: list[np.ndarray[Any, np.dtype[np.float32]]] = []
        self.lines: list[int] = []

    def add(self, row: list[str], line: int) -> None:
        require(
            len(row) == len(self.header),
            f"{printable(self.path)}, line {line}: {len(row)} cells under {len(self.header)} columns; mend the row",
        )
        if not self.lines:
            self.left = {n: row[i] for i, n in enumerate(self.header) if i not in self.words and i not in self.scores}
        try:
            self.rows.append(np.array([row[i] for i in self.scores], dtype=np.float32))
        except ValueError:  # which columns have to hold numbers is not known here
            cells = [row[i] if _is_number([row[i]]) else "nan" for i in self.scores]
            self.rows.append(np.array(cells, dtype=np.float32))
        for i, cells in self.words.items():
            cells.append(row[i].strip())
        self.lines.append(line)

    def cells(self) -> Cells:
        scores = np.stack(self.rows) if self.rows else np.zeros((0, len(self.scores)), dtype=np.float32)
        return Cells(
            {self.header[i]: cells for i, cells in self.words.items()},
            tuple(self.header[i] for i in self.scores),
            scores,
            self.lines,
            self.left,
        )


def _read_parquet(path: Path, extra: Sequence[str]) -> Cells:
    try:
        import pyarrow
        import pyarrow.parquet as parquet
    except ImportError as error:
        raise HoldfastError(f"reading {printable(path)} needs pyarrow; run: pip install 'holdfast[parquet]'") from error
    try:
        table = parquet.read_table(path)
    except (OSError, ValueError) as error:  # pyarrow's errors are of these kinds
        raise HoldfastError(f"cannot read {printable(path)} as Parquet: {error}; write it again") from error
    header = _header(path, table.column_names, extra)
    words, scores, left = {}, [], {}
    for name, column in zip(header, table.columns, strict=True):
        if _is_word(name, extra):
            words[name] = [cell_text(cell) for cell in column.to_pylist()]
        elif name and (pyarrow.types.is_floating(column.type) or pyarrow.types.is_integer(column.type)):
            scores.append((name, column.to_numpy().astype(np.float32)))
        else:
            left[name] = cell_text(column[0].as_py()) if len(column) else ""
    matrix = np.stack([values for _, values in scores], 1) if scores else np.zeros((table.num_rows, 0), np.float32)
    return Cells(words, tuple(n for n, _ in scores), matrix, range(1, table.num_rows + 1), left)


def _header(path: Path, names: Sequence[str], extra: Sequence[str]) -> list[str]:
    """Column names; those known in any case in lower case, those ignored empty."""
    stripped = [name.strip() for name in names]
    own = {name: here for name, here in PREDICT.items() if name not in extra} if {*PREDICT} <= {*stripped} else {}
    header = [own[name] if name in own else _known(name, extra) for name in stripped]
    require(bool(header), f"{printable(path)} is empty; the first line must name the columns")
    twice = sorted({name for name in header if name and header.count(name) > 1})
    require(not twice, f"{printable(path)} has the column {', '.join(map(printable, twice))} more than once; keep one")
    for name in extra:
        require(name in header, f"{printable(path)} has no column {name!r}; its columns are: {', '.join(names)}")
    return header


def _known(name: str, extra: Sequence[str]) -> str:
    if name in extra:
        return name
    return "" if name.lower() in IGNORED else name.lower() if name.lower() in WORDS else name


def _is_word(name: str, extra: Sequence[str]) -> bool:
    return name in WORDS or name in extra


def _is_number(cells: Sequence[str]) -> bool:
    try:
        return bool(cells) and float(cells[0]) is not None
    except ValueError:
        return False
