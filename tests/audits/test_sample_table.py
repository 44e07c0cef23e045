"""samples.csv: what was given comes back, and a spreadsheet runs none of it."""

from __future__ import annotations

import csv
import io
from pathlib import Path
from typing import Any

import pytest

from holdfast.audits.audit_folder import FIRST, write_samples
from holdfast.errors import HoldfastError

NASTY = ('=HYPERLINK("http://x")', "+1", "-1", "@SUM(A1)", 'a"b,c', "two\nlines", "\x1b[31mred", "\u202ereversed", "")


def columns(names: tuple[str, ...] = ("cat", "dog")) -> dict[str, list[Any]]:
    n = len(names)
    return {
        "accuracy": ["right"] * n,
        "id": list(range(n)),
        "path": [f"img/{i}.png" for i in range(n)],
        "label": list(names),
        "prediction": list(names),
        "confidence": [0.1 + i / 7 for i in range(n)],
        "group": [None] * n,
    }


def written(folder: Path, given: dict[str, list[Any]]) -> str:
    write_samples(folder, given, "csv")
    return (folder / "samples.csv").read_bytes().decode("utf-8")


def test_rows_come_back_with_all_digits(tmp_path: Path) -> None:
    given = columns()
    header, *rows = list(csv.reader(io.StringIO(written(tmp_path, given))))
    assert header == [*FIRST, "accuracy"]
    assert [float(row[4]) for row in rows] == given["confidence"]
    assert [row[5] for row in rows] == ["", ""]
    assert [row[2] for row in rows] == ["cat", "dog"]


def test_hostile_names_are_neither_formulas_nor_lines(tmp_path: Path) -> None:
    text = written(tmp_path, columns(NASTY))
    rows = list(csv.reader(io.StringIO(text)))
    assert len(rows) == len(NASTY) + 1
    assert not any(cell.startswith(("=", "+", "-", "@")) for row in rows for cell in row)
    assert not any(c in text for c in "\x1b\u202e")


def test_a_column_that_is_missing_or_short_is_named(tmp_path: Path) -> None:
    given = columns()
    with pytest.raises(HoldfastError, match="needs the columns path"):
        written(tmp_path, {k: v for k, v in given.items() if k != "path"})
    with pytest.raises(HoldfastError, match="as long as each other"):
        written(tmp_path, {**given, "accuracy": []})


def test_the_file_is_utf8(tmp_path: Path) -> None:
    assert "犬" in written(tmp_path / "new", columns(("größe", "犬")))
