"""A check looks at every file, counts what is there, and goes on where load would stop."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest

from holdfast.data import load
from holdfast.errors import HoldfastError
from holdfast.quality import check_data
from tests.data.pictures import noise, truncated_jpeg, write


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    write(tmp_path / "train/ant/1.png", noise(6, 6))
    write(tmp_path / "train/ant/2.png", noise(6, 9))
    write(tmp_path / "train/bee/1.png", noise(6, 9, channels=1))
    write(tmp_path / "train/bee/2.png", noise(6, 9, channels=4))
    write(tmp_path / "test/bee/3.png", np.full((6, 9), 300, dtype=np.uint16))
    return tmp_path


def test_a_sound_folder_is_counted_by_class_size_and_mode(folder: Path) -> None:
    report = check_data(folder)
    assert report.sound
    assert report.splits == {"train": {"ant": 2, "bee": 2}, "test": {"ant": 0, "bee": 1}}
    assert report.sizes == {(6, 6): 1, (6, 9): 4}
    assert report.modes == {"RGB": 2, "L": 1, "RGBA": 1, "I;16": 1}
    text = report.to_text()
    assert "sizes (width x height): 9x6: 4, 6x6: 1" in text
    assert "channels: I;16: 1, L: 1, RGB: 2, RGBA: 1" in text
    assert "every image was read; no problem was found" in text


def test_every_unreadable_file_is_listed_with_its_reason(folder: Path) -> None:
    truncated_jpeg(folder / "train/ant/half.jpg")
    (folder / "train/bee/empty.png").touch()
    (folder / "test/bee/gone.png").symlink_to(folder / "nowhere.png")
    write(folder / "test/bee/float.tif", np.zeros((4, 4), dtype=np.float32))
    report = check_data(folder)
    assert not report.sound
    assert report.problems == ()
    reasons = {Path(bad.path).name: bad.reason for bad in report.unreadable}
    assert set(reasons) == {"half.jpg", "empty.png", "gone.png", "float.tif"}
    assert "truncated" in reasons["half.jpg"]
    assert "not a known image format" in reasons["empty.png"]
    assert "No such file" in reasons["gone.png"]
    assert "float pixels" in reasons["float.tif"]
    text = report.to_text()
    assert "unreadable (4):" in text
    assert all(bad.path in text and bad.reason in text for bad in report.unreadable)
    assert sum(report.sizes.values()) == 5


@pytest.mark.parametrize("beside", [False, True], ids=["flat", "beside classes"])
def test_pictures_of_no_class_are_looked_at_too(beside: bool, tmp_path: Path, folder: Path) -> None:
    heap = folder if beside else tmp_path / "flat"
    write(heap / "good.png", noise(6, 6))
    truncated_jpeg(heap / "bad.jpg")
    (heap / "notes.txt").write_text("no picture")
    report = check_data(heap)
    assert [(Path(bad.path).name, "truncated" in bad.reason) for bad in report.unreadable] == [("bad.jpg", True)]
    assert sum(report.sizes.values()) == (5 if beside else 0) + 1
    assert not report.sound
    assert ["no folders in it" in problem for problem in report.problems] == ([] if beside else [True])
    (heap / "bad.jpg").unlink()
    assert check_data(heap).sound == beside


def test_labels_in_file_names_are_counted_once(tmp_path: Path) -> None:
    for name in ("1_a.png", "2_a.png", "1_b.png", "2_b.png"):
        write(tmp_path / name, noise(6, 6))
    report = check_data(tmp_path, names="{age}_", label="age>=2")
    assert sum(report.sizes.values()) == 4


def test_what_a_check_calls_readable_can_be_read(folder: Path) -> None:
    assert check_data(folder).sound
    data = load(folder)
    for split in (data.train, data.test):
        assert split is not None
        for position in range(len(split)):
            split.subset(split.labels.new_tensor([position])).read(split.labels.new_tensor([0]))


def test_problems_that_load_refuses_are_all_reported_with_the_counts(folder: Path) -> None:
    (folder / "train/cow").mkdir()
    (folder / "train/dog").mkdir()
    write(folder / "test/elk/1.png")
    with pytest.raises(HoldfastError):
        load(folder)
    report = check_data(folder)
    assert not report.sound
    assert report.splits["train"] == {"ant": 2, "bee": 2, "cow": 0, "dog": 0, "elk": 0}
    assert report.splits["test"]["elk"] == 1
    for part in ("test/elk has no counterpart", "class 'cow'", "class 'dog'"):
        assert any(part in problem for problem in report.problems)
    assert f"problems ({len(report.problems)}):" in report.to_text()


def test_control_characters_are_escaped(folder: Path) -> None:
    (folder / "train/ant/bad\x1b[2J\n.png").touch()
    (folder / "train/bee" / os.fsdecode(b"caf\xe9.png")).touch()
    text = check_data(folder).to_text()
    assert "bad\\x1b[2J\\n.png: empty" in text
    assert "caf\\udce9.png: empty" in text
    assert all(line.isprintable() for line in text.split("\n"))
    text.encode()


def test_a_table_is_checked_though_files_and_cells_are_missing(folder: Path) -> None:
    rows = ["path,label,group,split", "train/ant/1.png,ant,wood,train", "train/bee/1.png,bee,,train",
            "gone.png,bee,water,test", "train/ant/2.png,,wood,train"]  # fmt: skip
    (folder / "set.csv").write_text("\n".join(rows))
    report = check_data(folder / "set.csv")
    assert report.splits == {"train": {"ant": 1, "bee": 1}, "test": {"ant": 0, "bee": 1}}
    assert report.groups["train"] == {"water": 0, "wood": 1, "(unknown)": 1}
    assert report.groups["test"] == {"water": 1, "wood": 0}
    assert [Path(bad.path).name for bad in report.unreadable] == ["gone.png"]
    assert any("1 rows have no label, the first at line 5" in problem for problem in report.problems)
    assert any("1 of 3 files do not exist" in problem for problem in report.problems)
    text = report.to_text()
    assert text.index("group ") < text.index("wood") < text.index("(unknown)")


def test_arrays_are_counted_and_their_problems_told(tmp_path: Path) -> None:
    x = np.zeros((4, 5, 7), np.uint8)
    np.savez(tmp_path / "set.npz", x_train=x, y_train=[0, 1, 1, 1])
    report = check_data(tmp_path / "set.npz")
    assert report.sound
    assert (report.splits, report.sizes, report.modes) == ({"train": {"0": 1, "1": 3}}, {(5, 7): 4}, {"L": 4})
    np.savez(tmp_path / "set.npz", x_train=np.full((4, 5, 7), np.nan), y_train=[0, 1, 1, 1])
    assert "140 values that are NaN" in check_data(tmp_path / "set.npz").problems[0]
    np.savez(tmp_path / "set.npz", x_train=x, y_train=[0, 0, 0, 0])
    assert "at least two classes" in check_data(tmp_path / "set.npz").problems[0]


def test_groups_of_the_embedded_set_are_shown() -> None:
    report = check_data("coloured-digits")
    assert sum(report.groups["test"].values()) == 599
    assert "violet" in report.to_text()


def test_files_go_through_the_pool_in_pieces(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = check_data(folder)
    monkeypatch.setattr("holdfast.data.usable_data.CHUNK", 2)
    assert check_data(folder) == whole


def test_only_the_commonest_sizes_are_shown(folder: Path) -> None:
    for side in range(10, 40):
        write(folder / f"train/ant/{side}.png", noise(side, side))
    assert ", 12 more" in check_data(folder).to_text()


def test_a_name_that_does_not_exist_is_an_error() -> None:
    with pytest.raises(HoldfastError, match=r"unknown data set 'digitz'; did you mean 'digits'"):
        check_data("digitz")


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="needs named pipes")
def test_a_pipe_among_images_is_listed_and_not_waited_for(tmp_path: Path) -> None:
    for name in ("a/0.png", "b/0.png"):
        write(tmp_path / name)
    os.mkfifo(tmp_path / "a" / "pipe.png")
    found = check_data(tmp_path)
    assert [(Path(bad.path).name, bad.reason) for bad in found.unreadable] == [
        ("pipe.png", "it is a pipe, socket or device, not a file")
    ]
