"""samples.csv: one row a test image, with what the model and each check say of it."""

from __future__ import annotations

import csv
import io
from collections.abc import Mapping, Sequence
from pathlib import Path

from holdfast.errors import require
from holdfast.files import write_atomic
from holdfast.printable import one_line

FIRST = ("id", "path", "label", "prediction", "confidence", "group")
"""Columns that are always there; one a check follows."""
FORMULA = ("=", "+", "-", "@", "＝", "＋", "－", "＠")
"""A spreadsheet takes a cell that starts so for a formula, and runs it; some trim it first, some take wide signs."""


def samples_table(columns: Mapping[str, Sequence[str | int | float | None]]) -> str:
    """The table as text. Columns by name, all of one length, those of FIRST among them; None is an empty cell."""
    missing = [name for name in FIRST if name not in columns]
    require(not missing, f"a table of samples needs the columns {', '.join(missing)}")
    lengths = {name: len(values) for name, values in columns.items()}
    require(len(set(lengths.values())) == 1, f"columns must be as long as each other, got {lengths}")
    names = [*FIRST, *(name for name in columns if name not in FIRST)]
    file = io.StringIO()
    writer = csv.writer(file, lineterminator="\n")
    writer.writerow(map(_cell, names))
    writer.writerows([_cell(value) for value in row] for row in zip(*(columns[n] for n in names), strict=True))
    return file.getvalue()


def write_samples(path: str | Path, columns: Mapping[str, Sequence[str | int | float | None]]) -> None:
    """The table as a file, whole or not at all."""
    write_atomic(Path(path), samples_table(columns).encode("utf-8"))


def _cell(value: str | int | float | None) -> str:
    """Text on one line that is no formula; numbers in full.

    >>> _cell("=1+1"), _cell(-0.25), _cell(None)
    ("'=1+1", '-0.25', '')
    """
    if value is None:
        return ""
    if not isinstance(value, str):
        return repr(value)
    text = one_line(value)
    return f"'{text}" if text.lstrip().startswith(FORMULA) else text
