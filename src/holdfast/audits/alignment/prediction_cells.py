"""Cells of a predictions file: text by column, scores as numbers."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Final

import torch
from torch import Tensor

from holdfast.audits.alignment.classes import ClassMap, simple, targets
from holdfast.data.tables import TABLES, TableCells, read_table
from holdfast.detect.scoring import PREDICTION_COLUMNS
from holdfast.errors import HoldfastError, require, unknown
from holdfast.files import exists
from holdfast.printable import printable

WORDS: Final = ("id", "path", "position", "label", "prediction", "group")
"""Columns that say something of a row; known in any case."""
IGNORED: Final = ("split", "confidence", "correct")
PREDICT: Final = dict.fromkeys(PREDICTION_COLUMNS, "") | {"image": "path", "label": "prediction"}
"""Columns of a file of ``holdfast predict``, and what each is here: its label is an answer, not the truth. Only all of
them together are taken so: in files of others ``label`` keeps its meaning."""


def read_cells(path: str | Path, *, extra: Sequence[str] = ()) -> TableCells:
    """A CSV or Parquet file. extra: further columns of words."""
    path = Path(path)
    require(exists(path) and path.is_file(), f"predictions {printable(path)} do not exist; give a CSV or Parquet file")
    suffix = path.suffix.lower()
    require(suffix in TABLES, f"predictions {printable(path)} must be .csv or .parquet, not {suffix!r}")
    header = partial(_header, path, extra=extra)
    return read_table(path, header=header, text=(*WORDS, *extra), numbers=True, strict=True)


def class_indices(
    cells: TableCells, column: str, classes: tuple[str, ...], name: str, class_map: ClassMap | None = None
) -> Tensor:
    """(N,) class of each cell of a column of words: by name, spelled as columns may be, or by number where no cell is
    a name.

    class_map: which other words stand for a class.
    """
    require(column in cells.text, f"{name} has no column {column!r}; add one, or give the data it belongs to")
    words = cells.text[column]
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
    for word, said, line in zip(words, cells.text[column], cells.lines, strict=True):
        if word not in known:
            raise HoldfastError(f"{name}, line {line}: {unknown(column, printable(said), spelled)}")
    return torch.tensor([known[word] for word in words])


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
