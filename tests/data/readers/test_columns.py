"""Tables whose columns have other names, and groups of a column for training and comparing."""

from __future__ import annotations

from pathlib import Path

import pytest

import holdfast
from holdfast.cli import main
from holdfast.data import load
from holdfast.errors import HoldfastError
from tests.data.pictures import noise, write


@pytest.fixture
def table(tmp_path: Path) -> Path:
    """Twenty images under columns of a hospital's own names."""
    lines = ["file,finding,site,label"]
    for i in range(20):
        write(tmp_path / f"{i}.png", noise(6, 6, seed=i))
        lines.append(f"{i}.png,{'ill' if i % 2 else 'well'},{'north' if i % 3 else 'south'},other")
    path = tmp_path / "scans.csv"
    path.write_text("\n".join(lines))
    return path


COLUMNS = "image=file,label=finding"


def test_columns_of_any_name_are_read_for_what_they_are(table: Path) -> None:
    data = load(table, columns=COLUMNS)
    assert (data.classes, data.group_names) == (("ill", "well"), ())
    by_site = load(table, columns={"path": "FILE", "label": "finding", "group": "site"})
    assert (by_site.group_names, by_site.group_attribute) == (("north", "south"), "site")
    assert load(table, columns=COLUMNS, group="site").train.groups.equal(by_site.train.groups)


@pytest.mark.parametrize(
    ("columns", "message"),
    [
        ("", "names no column for"),
        ("image", "columns 'image' names no column for 'image'; write them as image=file,label=class,group=site"),
        ("picture=file", "unknown role of a column 'picture'; did you mean"),
        ("image=file,path=file", "gives image twice"),
        ("image=nowhere,label=finding", "has no column 'nowhere'; its columns are: file, finding, site, label"),
        ("label=finding", "has no column 'path'.*Say which is which: --columns image=FILE,label=CLASS"),
        ("image=file,label=file", "columns gives one column two roles: file, file"),
    ],
)
def test_columns_that_cannot_be_are_refused(columns: str, message: str, table: Path) -> None:
    with pytest.raises(HoldfastError, match=message):
        load(table, columns=columns)
    with pytest.raises(HoldfastError, match="columns cannot be used for coloured-digits"):
        load("coloured-digits", columns=COLUMNS)


SAME = ["--epochs", "1", "--batch-size", "4", "--device", "cpu", "--workers", "0", "--quiet"]


@pytest.mark.slow
def test_training_and_auditing_take_columns_and_a_group(table: Path, tmp_path: Path) -> None:
    words = ["--data", str(table), "--columns", COLUMNS, "--group", "site", *SAME]
    out = str(tmp_path / "run")
    assert main(["train", *words, "--method", "group-dro", "--out", out]) == 0
    audit = holdfast.audit(out, str(table), checks=["groups"], device="cpu", workers=0)
    assert {f.where.get("group") for f in audit} >= {"north", "south"}


@pytest.mark.slow
def test_comparing_takes_columns_and_a_group(table: Path, tmp_path: Path) -> None:
    words = ["--data", str(table), "--columns", COLUMNS, "--group", "site", *SAME, "--out", str(tmp_path / "c")]
    assert main(["compare", *words, "--methods", "erm", "reweight", "--seeds", "1"]) == 0


def test_searching_for_shortcuts_takes_columns_and_a_group(table: Path) -> None:
    quick = {"epochs": 1, "seeds": 1, "clusters": 1, "resamples": 2, "test": False, "device": "cpu"}
    assert len(holdfast.find_shortcuts(table, columns=COLUMNS, group="site", **quick).order) == 16  # type: ignore[arg-type]
