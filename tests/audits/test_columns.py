"""Several columns of groups, from whatever kind of data: each alone and crossed with the label."""

from __future__ import annotations

import csv
import re
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from holdfast.audits.audit_data import ColumnWords
from holdfast.cli import main
from holdfast.data import load
from holdfast.reports import read_findings
from tests.audits.nearest import table
from tests.data.readers.test_celeba import make as make_celeba

MODEL = '''
import torch
from torch import nn


class Bright(nn.Module):
    """Says "b" of an image whose first pixel is bright."""

    classes = ["a", "b"]

    def forward(self, x):
        z = 10 * (x[:, :1, 0, 0] - 0.5)
        return torch.cat([-z, z], 1)


def make():
    return Bright()
'''
SITES, AGES = ("north", "south", ""), (20, 70)


def rows() -> list[tuple[str, str, str, str, int, bool]]:
    """(name, split, label, site, age, whether the model is right): wrong in the south, and only there."""
    made = []
    for i in range(120):
        label, site, age = "ab"[i // 2 % 2], SITES[i // 4 % 3 if i % 2 else 0], AGES[i // 12 % 2]
        made.append((f"{i}.png", ("train", "test")[i % 2], label, site, age, not (site == "south" and label == "b")))
    return made


def shade(label: str, right: bool) -> int:
    return 255 * ((label == "b") == right)


@pytest.fixture
def sources(folder: Path) -> dict[str, list[str]]:
    """The same samples as a table of files and as arrays; the words that name them."""
    (folder / "bright.py").write_text(MODEL)
    with (folder / "t.csv").open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["path", "label", "split", "Site", "age", "note"])
        for name, split, label, site, age, right in rows():
            Image.new("L", (4, 4), shade(label, right)).save(folder / name)
            writer.writerow([name, label, split, site, age, ""])
    arrays: dict[str, np.ndarray] = {"classes": np.array(["a", "b"])}  # type: ignore[type-arg]
    for split in ("train", "test"):
        own = [row for row in rows() if row[1] == split]
        images = [np.full((4, 4), shade(row[2], row[5]), np.uint8) for row in own]
        arrays |= {f"x_{split}": np.stack(images), f"y_{split}": np.array([row[2] == "b" for row in own], np.int64)}
        arrays |= {
            f"Site_{split}": np.array([row[3] for row in own]),
            f"age_{split}": np.array([row[4] for row in own]),
        }
    np.savez(folder / "t.npz", **arrays)  # type: ignore[arg-type]
    return {"table": ["--data", "t.csv"], "arrays": ["--data", "t.npz"]}


@pytest.mark.parametrize("source", ["table", "arrays"])
def test_each_column_is_measured_and_crossed_with_the_label(source: str, sources: dict[str, list[str]]) -> None:
    words = ["audit", "python:bright:make", *sources[source], "--device", "cpu", "--workers", "0", "--quiet"]
    words += ["--checks", "groups", "slices", "--out", "out"]
    assert main([*words, "--group", "Site", "--group", "age"]) == 0
    found = {
        (f.name, *sorted(f.where.items())): (f.value, f.n)
        for f in read_findings("out/findings.json").findings
        if f.check == "groups"
    }
    test = [row for row in rows() if row[1] == "test"]
    for column, place in (("Site", 3), ("age", 4)):
        for word in {str(row[place]) for row in test} - {""}:
            for label in ("a", "b", None):
                own = [row[5] for row in test if str(row[place]) == word and label in (None, row[2])]
                cell = [("class", label)] if label else []
                where = sorted([("column", column), (column, word), *cell])
                assert found["group_accuracy", *where] == (pytest.approx(sum(own) / len(own)), len(own)), where
    assert found["worst_group_accuracy", ("column", "Site")] == (0.0, sum(r[2:4] == ("b", "south") for r in test))
    samples = table(Path("out"))
    assert [row["group Site"] for row in samples] == [row[3] for row in test]
    worst = [row[2] == "b" and row[3] == "south" for row in test]
    assert ["worst by Site" in row["groups"] for row in samples] == worst
    gate = [*words, "--group", "Site", "--group", "age", "--fail-under"]
    assert main([*gate, "worst_group_accuracy=0.5"]) == 1
    assert main([*gate, "worst_group_accuracy=0"]) == 0


@pytest.mark.parametrize("parts", [True, False])
def test_rows_of_one_file_keep_their_own_words(parts: bool, sources: dict[str, list[str]]) -> None:
    """Every file in two rows, seen by two scanners; without a split column the test rows are drawn from all."""
    with Path("t.csv").open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["path", "label", "group", "scanner", *["split"] * parts])
        for name, split, label, *_ in rows():
            writer.writerows([name, label, scanner, scanner, *[split] * parts] for scanner in "AB")
    words = ["audit", "python:bright:make", *sources["table"], "--device", "cpu", "--workers", "0", "--quiet"]
    assert main([*words, "--checks", "groups", "--group", "scanner", "--group", "group", "--out", "out"]) == 0
    data = load("t.csv")
    assert data.test is not None
    truth = [data.group_names[g] for g in data.test.groups.tolist()]
    assert set(truth) == {"A", "B"}
    for column in ("scanner", "group"):
        assert [row[f"group {column}"] for row in table(Path("out"))] == truth


def test_a_column_is_measured_beside_the_groups_of_the_data(
    sources: dict[str, list[str]], capsys: pytest.CaptureFixture[str]
) -> None:
    """A column asked for once took the place of the data's own, whose worst cell was then never shown."""
    with Path("t.csv").open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["path", "label", "split", "group", "cam"])
        for i, (name, split, label, site, *_) in enumerate(rows()):
            writer.writerow([name, label, split, site, "AB"[i % 3 == 0]])
    words = ["audit", "python:bright:make", *sources["table"], "--device", "cpu", "--workers", "0", "--out", "out"]
    words += ["--checks", "groups", "--group", "cam", "--fail-under", "worst_group_accuracy=0.1"]
    assert main(words) == 1, "the gate holds by cam, and must by the data's own groups too"
    assert "data: groups by cam, and by the data's own column 'group' as always" in capsys.readouterr().err
    found = read_findings("out/findings.json").findings
    worst = {f.where["column"]: (f.value, f.n) for f in found if f.name == "worst_group_accuracy"}
    test = [(i, row) for i, row in enumerate(rows()) if row[1] == "test"]
    cells = [[row[5] for i, row in test if row[2] == y and "AB"[i % 3 == 0] == cam] for y in "ab" for cam in "AB"]
    by_cam = min(sum(own) / len(own) for own in cells)
    assert worst["cam"][0] == pytest.approx(by_cam)
    assert worst["group"] == (0.0, sum(row[2:4] == ("b", "south") for _, row in test))
    assert by_cam > 0.1


def test_an_attribute_does_not_replace_the_one_that_a_set_has(folder: Path) -> None:
    make_celeba(Path("faces"))
    Path("tiny.py").write_text(
        "import torch\n\n\ndef make():\n    return torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(192, 2))\n"
    )
    words = ["audit", "python:tiny:make", "--data", "faces", "--class-map", "order", "--device", "cpu"]
    words += ["--workers", "0", "--checks", "groups", "--quiet", "--out", "out", "--group"]
    assert main([*words, "Smiling"]) == 0
    found = read_findings("out/findings.json").findings
    groups = {f.where["column"]: set() for f in found if "column" in f.where}  # type: ignore[var-annotated]
    for f in found:
        column = f.where.get("column", "")
        groups.get(column, set()).update({f.where[column]} if column in f.where else set())
    assert groups == {"Smiling": {"Smiling", "not Smiling"}, "group": {"Male", "not Male"}}
    assert main([*words, "Male"]) == 0
    own = [f.where.get("column") for f in read_findings("out/findings.json").findings]
    assert set(own) == {None, "Male"}, "the same groups are not shown twice"


def test_a_missing_column_is_refused_before_anything_is_measured(
    sources: dict[str, list[str]], capsys: pytest.CaptureFixture[str]
) -> None:
    for source, message in (("table", "t.csv has no column 'sight'"), ("arrays", "t.npz has no array sight_test")):
        words = ["audit", "python:bright:make", *sources[source], "--device", "cpu", "--out", "none"]
        assert main([*words, "--group", "Site", "--group", "sight"]) == 2
        assert message in capsys.readouterr().err
        assert not Path("none").exists()


def test_cells_of_arrays_read_as_cells_of_tables_do(sources: dict[str, list[str]]) -> None:
    """NaN is unknown, and a whole number that is stored as a float has no point."""
    with np.load("t.npz") as archive:
        arrays = dict(archive)
    wards = np.resize([0.0, 1.0, np.nan, 2.5], 60)
    trained = np.resize([0.0, 1.0, np.nan, 1.0], 60)  # every class has a ward of its own
    np.savez("t.npz", **arrays, ward_test=wards, ward_train=trained, bed_test=np.resize([b"x", b" y"], 60))
    words = ["audit", "python:bright:make", *sources["arrays"], "--device", "cpu", "--workers", "0", "--quiet"]
    assert main([*words, "--checks", "groups", "--group", "ward", "--group", "bed", "--out", "out"]) == 0
    assert [row["group ward"] for row in table(Path("out"))] == ["0", "1", "", "2.5"] * 15
    assert [row["group bed"] for row in table(Path("out"))] == ["x", "y"] * 30
    found = read_findings("out/findings.json").findings
    assert {f.where["ward"] for f in found if "ward" in f.where} == {"0", "1", "2.5"}
    assert sum(f.n for f in found if f.where.get("column") == "ward" and re.match("bias_.*_accuracy", f.name)) == 45


def test_other_groups_are_measured_again(sources: dict[str, list[str]]) -> None:
    words = ["audit", "python:bright:make", *sources["table"], "--device", "cpu", "--workers", "0", "--quiet"]
    words += ["--checks", "groups", "--group", "Site", "--group", "age", "--out", "out"]
    assert main(words) == 0
    text = Path("t.csv").read_text()
    Path("t.csv").write_text(text.replace("south", "west"))
    assert main(words) == 0
    assert "west" in Path("out/findings.json").read_text()
    assert "south" not in Path("out/findings.json").read_text()


def test_many_numbers_are_a_quantity_and_few_are_kinds() -> None:
    made = ColumnWords({"age": [str(i) for i in range(20)], "site": ["b", "a", ""] * 6 + ["a", "a"]}).group_columns()
    age, site = made["age"].values, made["site"].values
    assert age.is_floating_point()
    assert torch.equal(age, torch.arange(20.0, dtype=torch.float64))
    assert site[:3].tolist() == [1, 0, -1]
    assert made["age"].ids.tolist() == list(range(20))
    assert made["site"].names == ("a", "b")
