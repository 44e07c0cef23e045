"""Waterbirds' metadata.csv."""

from __future__ import annotations

from pathlib import Path

import pytest

from holdfast.data import FileSplit, load
from holdfast.errors import HoldfastError
from tests.data.pictures import noise, write

ROWS = (
    ("001.Albatross/a_1.jpg", 1, 0, 1),
    ("001.Albatross/a_2.jpg", 1, 0, 0),
    ("002.Wren/w_1.jpg", 0, 0, 0),
    ("002.Wren/w_2.jpg", 0, 1, 1),
    ("002.Wren/w_3.jpg", 0, 2, 0),
    ("001.Albatross/a_3.jpg", 1, 2, 0),
)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    lines = ["img_id,img_filename,y,split,place,place_filename"]
    for i, (name, label, split, place) in enumerate(ROWS):
        write(tmp_path / name, noise(8, 8, seed=i))
        lines.append(f'{i},{name},{label},{split},{place},"/b/bamboo, forest/1.jpg"')
    (tmp_path / "metadata.csv").write_text("\n".join(lines) + "\n")
    return tmp_path


@pytest.mark.parametrize("how", ["path", "name"])
def test_labels_splits_and_places_follow_the_table(folder: Path, how: str) -> None:
    data = load(folder) if how == "path" else load("waterbirds", root=folder)
    assert data.classes == ("landbird", "waterbird")
    assert data.group_names == ("land", "water")
    assert isinstance(data.train, FileSplit)
    assert [path.name for path in data.train.paths] == ["a_1.jpg", "a_2.jpg", "w_1.jpg"]
    assert data.train.labels.tolist() == [1, 1, 0]
    assert data.train.groups.tolist() == [1, 0, 0]
    assert data.val is not None
    assert data.test is not None
    assert (data.val.labels.tolist(), data.val.groups.tolist()) == ([0], [1])
    assert (data.test.labels.tolist(), data.test.groups.tolist()) == ([0, 1], [0, 0])


def test_a_lost_image_is_named(folder: Path) -> None:
    (folder / "002.Wren/w_2.jpg").unlink()
    with pytest.raises(HoldfastError, match=r"1 files of metadata.csv do not exist: .*w_2.jpg; unpack"):
        load(folder)


def test_a_row_out_of_range_is_named(folder: Path) -> None:
    with (folder / "metadata.csv").open("a") as file:
        file.write("9,002.Wren/w_1.jpg,2,0,0,x\n")
    with pytest.raises(HoldfastError, match="line 8 of metadata.csv: y and place must be 0 or 1"):
        load(folder)


def test_another_metadata_csv_is_not_taken_for_it(tmp_path: Path) -> None:
    (tmp_path / "metadata.csv").write_text("file_name,text\n")
    for name in ("a", "b"):
        for i in range(5):
            write(tmp_path / name / f"{i}.png", noise(8, 8, seed=i))
    assert load(tmp_path).classes == ("a", "b")
