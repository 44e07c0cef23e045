"""A table names files, classes, groups and splits; CSV and Parquet say the same."""

from __future__ import annotations

import csv
import os
import sys
from pathlib import Path

import pytest
import torch

from holdfast.data import Dataset, FileSplit, load
from holdfast.data.tables import cell_text, read_columns
from holdfast.errors import HoldfastError
from holdfast.quality import check_data
from tests.data.pictures import noise, write

Rows = list[dict[str, object]]


def make_rows(folder: Path, count: int = 6) -> Rows:
    rows: Rows = []
    for i in range(count):
        write(folder / f"images/{i}.png", noise(6, 6, seed=i))
        split = "train" if i < 4 else "test"
        rows.append({"path": f"images/{i}.png", "label": "ab"[i % 2], "group": "xyz"[i % 3], "split": split})
    return rows


def write_csv(path: Path, rows: Rows) -> Path:
    with path.open("w", newline="", encoding="utf-8", errors="surrogateescape") as file:
        writer = csv.DictWriter(file, list(rows[0]))
        writer.writeheader()
        writer.writerows(rows)
    return path


def write_parquet(path: Path, rows: Rows) -> Path:
    import pyarrow
    import pyarrow.parquet

    pyarrow.parquet.write_table(pyarrow.Table.from_pylist(rows), path)
    return path


def write_table(folder: Path, kind: str, rows: Rows) -> Path:
    if kind == "parquet":
        pytest.importorskip("pyarrow")
        return write_parquet(folder / "set.parquet", rows)
    return write_csv(folder / "set.csv", rows)


def paths(data: Dataset, split: str) -> list[str]:
    own = getattr(data, split)
    assert isinstance(own, FileSplit)
    return [path.name for path in own.paths]


@pytest.mark.parametrize("kind", ["csv", "parquet"])
def test_rows_become_samples(tmp_path: Path, kind: str) -> None:
    data = load(write_table(tmp_path, kind, make_rows(tmp_path)))
    assert data.classes == ("a", "b")
    assert data.group_names == ("x", "y", "z")
    assert paths(data, "train") == ["0.png", "1.png", "2.png", "3.png"]
    assert paths(data, "test") == ["4.png", "5.png"]
    assert data.train.labels.tolist() == [0, 1, 0, 1]
    assert data.train.groups.tolist() == [0, 1, 2, 0]
    image = torch.from_numpy(noise(6, 6, seed=5)).permute(2, 0, 1)
    assert data.test is not None
    assert torch.equal(data.test.read(torch.tensor([1]))[0], image)


@pytest.mark.parametrize("kind", ["csv", "parquet"])
def test_numbers_as_labels_are_ordered_by_value(tmp_path: Path, kind: str) -> None:
    rows: Rows = [row | {"label": (2, 10)[i % 2]} for i, row in enumerate(make_rows(tmp_path))]
    assert load(write_table(tmp_path, kind, rows)).classes == ("2", "10")


@pytest.mark.parametrize(("word", "split"), [("val", "val"), ("valid", "val"), ("Validation", "val"), ("test", "test")])
def test_words_for_splits(tmp_path: Path, word: str, split: str) -> None:
    rows = make_rows(tmp_path, 8)
    for row in rows[:2]:
        row["split"] = word
    data = load(write_csv(tmp_path / "set.csv", rows))
    assert paths(data, split)[:2] == ["0.png", "1.png"]
    assert paths(data, "train") == ["2.png", "3.png"]


def test_without_a_split_column_all_rows_are_training(tmp_path: Path) -> None:
    rows: Rows = [{"path": row["path"], "label": row["label"]} for row in make_rows(tmp_path, 20)]
    data = load(write_csv(tmp_path / "set.csv", rows))
    assert data.test is not None
    assert (len(data.train), len(data.test)) == (16, 4)
    assert data.group_names == ()
    assert "20 training samples" in str(data.notes[0])


def test_an_empty_group_is_an_unknown_one(tmp_path: Path) -> None:
    rows = make_rows(tmp_path)
    rows[1]["group"] = ""
    data = load(write_csv(tmp_path / "set.csv", rows))
    assert data.train.groups.tolist() == [0, -1, 2, 0]


def test_paths_are_relative_to_root_where_one_is_given_or_absolute(tmp_path: Path) -> None:
    rows = make_rows(tmp_path / "images-here")
    rows[0]["path"] = str(tmp_path / "images-here" / "images/0.png")
    table = write_csv(tmp_path / "set.csv", rows)
    assert len(load(table, root=tmp_path / "images-here").train) == 4
    with pytest.raises(
        HoldfastError, match=r"5 of 6 files do not exist: .*1.png, .*2.png, .*3.png, \.\.\.; .*give root"
    ):
        load(table)


def test_spaces_around_cells_case_of_columns_a_byte_order_mark_and_blank_lines_do_no_harm(tmp_path: Path) -> None:
    make_rows(tmp_path)
    lines = ["\ufeffPath , LABEL", *(f" images/{i}.png , {'ab'[i % 2]} " for i in range(6)), "", ""]
    (tmp_path / "set.csv").write_text("\n".join(lines), encoding="utf-8")
    data = load(tmp_path / "set.csv")
    assert data.classes == ("a", "b")


def test_words_that_are_no_utf8_are_refused_and_listed(tmp_path: Path) -> None:
    """A spreadsheet's Latin-1: Köln would become a group that nobody typed."""
    paths = [write(tmp_path / f"{i}.png", noise(4, 4, seed=i)).name for i in range(4)]
    rows = [f"{path},{'ab'[i % 2]},{'Köln' if i else 'Rom'},Süd" for i, path in enumerate(paths)]
    table = tmp_path / "set.csv"
    table.write_bytes("\n".join(["path,label,group,site", *rows]).encode("latin-1"))
    message = "3 cells of column group are not UTF-8, the first at line 3; save the table as UTF-8"
    with pytest.raises(HoldfastError, match=message):
        load(table)
    assert message in "\n".join(check_data(table).problems)
    table.write_bytes(table.read_bytes().replace("Köln".encode("latin-1"), "Köln".encode()))
    with pytest.raises(HoldfastError, match="set.csv: 4 cells of column site are not UTF-8, the first at line 2"):
        read_columns(table, ["site"])


def test_names_that_are_no_utf8_are_found(tmp_path: Path) -> None:
    rows = make_rows(tmp_path)
    rows[0]["path"] = os.fsdecode(b"images/caf\xe9.png")
    try:
        write(tmp_path / str(rows[0]["path"]), noise(6, 6))
    except OSError:
        pytest.skip("this file system takes UTF-8 names only")
    data = load(write_csv(tmp_path / "set.csv", rows))
    assert data.train.describe(0).endswith("caf\\udce9.png")
    assert len(data.train.read(torch.arange(4))) == 4


def test_files_in_two_splits_are_noted(tmp_path: Path) -> None:
    rows = make_rows(tmp_path)
    rows[4]["path"] = rows[0]["path"]
    (note,) = load(write_csv(tmp_path / "set.csv", rows)).notes
    assert (note.text, note.level) == ("1 files are both in the train and the test split", "warning")
    assert note.remedy == "list each file once, or accuracy on the held-out split is too high"


@pytest.mark.parametrize("kind", ["csv", "parquet"])
@pytest.mark.parametrize(
    ("row", "column", "value", "message"),
    [
        (2, "label", "", r"1 rows have no label, the first at (line 4|row 3); fill the cells"),
        (1, "path", "", r"1 rows have no path, the first at (line 3|row 2)"),
        (5, "split", "", r"1 rows have no split, the first at (line 7|row 6)"),
        (0, "split", "trian", r"unknown split 'trian'; did you mean 'train'.* \((line 2|row 1)\)"),
        (5, "label", "c", r"label 'c' \((line 7|row 6), test split\) is not among the training rows; remove"),
        (3, "path", "images/gone.png", r"1 of 6 files do not exist: .*images/gone.png; paths are taken relative"),
    ],
)
def test_bad_cells_are_named_with_their_place(
    tmp_path: Path, kind: str, row: int, column: str, value: str, message: str
) -> None:
    rows = make_rows(tmp_path)
    rows[row][column] = value or None
    with pytest.raises(HoldfastError, match=message):
        load(write_table(tmp_path, kind, rows))


@pytest.mark.parametrize("kind", ["csv", "parquet"])
def test_missing_columns_are_told_with_those_there(tmp_path: Path, kind: str) -> None:
    rows: Rows = [{"file": row["path"], "label": row["label"]} for row in make_rows(tmp_path)]
    with pytest.raises(HoldfastError, match=r"has no column 'path'; its columns are: file, label. Needed: path, label"):
        load(write_table(tmp_path, kind, rows))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", r"has no column 'path'; its columns are: none"),
        ("path;label\na.png;1\n", r"seems to have semicolons between its cells; save it with commas"),
        ("path\tlabel\na.png\t1\n", "seems to have tabs between its cells; save it with commas"),
        ("path,label\n", r"there is no training sample"),
        ("path,label,label\na,b,c\n", r"the column 'label' more than once"),
        ("path,label\na,b.png,cat\n", r"1 rows have more cells than the header, the first at line 2"),
        ('path,label\n"a.png,cat\n', r"set.csv, line 2: unexpected end of data; fix the table"),
    ],
)
def test_tables_that_are_none_are_refused(tmp_path: Path, text: str, message: str) -> None:
    (tmp_path / "set.csv").write_text(text)
    with pytest.raises(HoldfastError, match=message):
        load(tmp_path / "set.csv")


def test_a_file_that_is_no_parquet_is_named(tmp_path: Path) -> None:
    pytest.importorskip("pyarrow")
    (tmp_path / "set.parquet").write_text("no table")
    with pytest.raises(HoldfastError, match=r"cannot read .*set.parquet as Parquet"):
        load(tmp_path / "set.parquet")


def test_without_pyarrow_the_extra_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "set.parquet").touch()
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    monkeypatch.setitem(sys.modules, "pyarrow.parquet", None)
    with pytest.raises(HoldfastError, match=r"needs pyarrow; run: pip install 'holdfast\[parquet\]'"):
        load(tmp_path / "set.parquet")


@pytest.mark.parametrize(
    ("cell", "shown"),
    [(3, "3"), (3.0, "3"), (2.5, "2.5"), (float("nan"), ""), (None, ""), (b"a\xff", "a\udcff"), (" b ", "b")],
)
def test_typed_cells_read_as_a_csv_shows_them(cell: object, shown: str) -> None:
    assert cell_text(cell) == shown
