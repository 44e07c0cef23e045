"""samples.csv: what was given comes back, and a spreadsheet runs none of it."""

from __future__ import annotations

import csv
import io
from pathlib import Path
from typing import Any

import pytest

from holdfast.errors import HoldfastError
from holdfast.reports.samples_table import FIRST, samples_table, write_samples

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


def test_rows_come_back_with_all_digits() -> None:
    given = columns()
    header, *rows = list(csv.reader(io.StringIO(samples_table(given))))
    assert header == [*FIRST, "accuracy"]
    assert [float(row[4]) for row in rows] == given["confidence"]
    assert [row[5] for row in rows] == ["", ""]
    assert [row[2] for row in rows] == ["cat", "dog"]


def test_hostile_names_are_neither_formulas_nor_lines() -> None:
    text = samples_table(columns(NASTY))
    rows = list(csv.reader(io.StringIO(text)))
    assert len(rows) == len(NASTY) + 1
    assert not any(cell.startswith(("=", "+", "-", "@")) for row in rows for cell in row)
    assert not any(c in text for c in "\x1b\u202e")


def test_a_column_that_is_missing_or_short_is_named() -> None:
    given = columns()
    with pytest.raises(HoldfastError, match="needs the columns path"):
        samples_table({k: v for k, v in given.items() if k != "path"})
    with pytest.raises(HoldfastError, match="as long as each other"):
        samples_table({**given, "accuracy": []})


def test_the_file_is_utf8(tmp_path: Path) -> None:
    write_samples(tmp_path / "new" / "samples.csv", columns(("größe", "犬")))
    assert "犬" in (tmp_path / "new" / "samples.csv").read_bytes().decode("utf-8")
