"""Folders of images become what their names say, and what is wrong with them is named."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch

from holdfast.data import Dataset, FileSplit, Split, load
from holdfast.errors import HoldfastError
from tests.data.pictures import noise, truncated_jpeg, write, write_class_folder


def make_folder(root: Path, **counts: dict[str, int]) -> Path:
    """``train={"cat": 3}`` makes root/train/cat/0.png, 1.png, 2.png."""
    for split, classes in counts.items():
        for number, (name, count) in enumerate(classes.items()):
            folder = root / split / name
            folder.mkdir(parents=True)
            write_class_folder(folder, count, seed=number)
    return root


def names(split: Split | None, root: Path) -> list[str]:
    assert isinstance(split, FileSplit)
    return [path.relative_to(root).as_posix() for path in split.paths]


@pytest.mark.parametrize("val", ["val", "valid", "validation", "Val"])
def test_train_val_and_test_are_told_apart(tmp_path: Path, val: str) -> None:
    root = make_folder(tmp_path, train={"dog": 2, "cat": 3}, test={"cat": 1}, **{val: {"dog": 1, "cat": 1}})
    data = load(root)
    assert data.classes == ("cat", "dog")
    assert names(data.train, root) == [
        "train/cat/0.png", "train/cat/1.png", "train/cat/2.png", "train/dog/0.png", "train/dog/1.png"
    ]  # fmt: skip
    assert data.train.labels.tolist() == [0, 0, 0, 1, 1]
    assert names(data.val, root) == [f"{val}/cat/0.png", f"{val}/dog/0.png"]
    assert names(data.test, root) == ["test/cat/0.png"]
    assert (data.train.groups == -1).all()
    assert torch.equal(data.train.read(torch.tensor([3]))[0], torch.from_numpy(noise(6, 6, seed=0)).permute(2, 0, 1))


def test_class_folders_alone_are_training_and_a_fifth_becomes_test(tmp_path: Path) -> None:
    make_folder(tmp_path, pets={"cat": 10, "dog": 20})
    data = load(tmp_path / "pets")
    assert data.test is not None
    assert torch.bincount(data.train.labels).tolist() == [8, 16]
    assert torch.bincount(data.test.labels).tolist() == [2, 4]
    assert tuple(map(str, data.notes)) == (
        "there is no test split; 6 of 30 training samples (20 % of every class, data_seed 0) were held out as test",
    )


def test_a_validation_folder_stays_one_where_test_is_held_out_of_training(tmp_path: Path) -> None:
    root = make_folder(tmp_path, train={"cat": 10, "dog": 10}, val={"cat": 1, "dog": 2})
    for training in (True, False):
        data = load(root, training=training)
        assert names(data.val, root) == ["val/cat/0.png", "val/dog/0.png", "val/dog/1.png"]
        held = names(data.test, root)
        assert len(held) == 4
        assert sorted(held + names(data.train, root)) == sorted(
            f"train/{c}/{i}.png" for c in ("cat", "dog") for i in range(10)
        )


def test_hidden_files_other_files_and_nested_folders(tmp_path: Path) -> None:
    root = make_folder(tmp_path, train={"a b": 1, "c": 1}, test={"c": 1})
    write(root / "train/c/deep/er/x.JPG")
    write(root / "train/c/.hidden.png")
    write(root / "train/c/.cache/y.png")
    write(root / "train/.thumbs/z.png")
    (root / "train/c/readme.txt").write_text("no image")
    (root / ".git").mkdir()
    data = load(root, image_size=6)
    assert data.classes == ("a b", "c")
    assert names(data.train, root) == ["train/a b/0.png", "train/c/0.png", "train/c/deep/er/x.JPG"]


def test_linked_folders_are_followed_once(tmp_path: Path) -> None:
    root = make_folder(tmp_path / "set", train={"a": 1, "b": 1}, test={"a": 1})
    write(tmp_path / "elsewhere/far.png", noise(6, 6))
    (root / "train/a/link").symlink_to(tmp_path / "elsewhere")
    (root / "train/a/loop").symlink_to(root / "train/a")
    assert names(load(root).train, root) == ["train/a/0.png", "train/a/link/far.png", "train/b/0.png"]


def test_names_that_are_no_utf8_are_read_and_shown_escaped(tmp_path: Path) -> None:
    root = make_folder(tmp_path, train={"a": 1, "b": 1}, test={"a": 1})
    odd = os.fsdecode(b"caf\xe9")
    try:
        write(root / "train" / odd / f"{odd}\n.png", noise(6, 6, seed=9))
    except OSError:
        pytest.skip("this file system takes UTF-8 names only")
    data = load(root)
    assert data.classes == ("a", "b", "caf\\udce9")
    assert torch.equal(data.train.read(torch.tensor([2]))[0], torch.from_numpy(noise(6, 6, seed=9)).permute(2, 0, 1))
    assert data.train.describe(2).isprintable()


def test_a_common_size_is_kept_and_a_given_one_wins(tmp_path: Path) -> None:
    for name in ("train/a/1.png", "train/b/1.png", "test/a/1.png"):
        write(tmp_path / name, noise(4, 10))
    assert load(tmp_path).shape == (3, 4, 10)
    assert load(tmp_path, image_size=5).shape == (3, 5, 5)


def test_sizes_that_differ_become_224_with_a_note(tmp_path: Path) -> None:
    root = make_folder(tmp_path, train={"a": 3, "b": 3}, test={"a": 1})
    write(root / "train/b/9.png", noise(3, 20))
    data = load(root)
    assert data.shape == (3, 224, 224)
    assert "images differ in size (from 20x3 to 6x6 among 7 sampled)" in str(data.notes[0])
    assert load(root, image_size=6).notes == ()


def test_grey_throughout_is_one_channel_and_one_coloured_image_makes_three(tmp_path: Path) -> None:
    for name in ("train/a/1.png", "train/b/1.png", "test/a/1.png"):
        write(tmp_path / name, noise(6, 6, channels=1))
    write(tmp_path / "train/b/2.png", np.full((6, 6), 900, dtype=np.uint16))
    assert load(tmp_path).shape == (1, 6, 6)
    write(tmp_path / "train/b/3.png", noise(6, 6))
    assert load(tmp_path).shape == (3, 6, 6)


def test_only_a_few_headers_are_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    root = make_folder(tmp_path, train={"a": 30, "b": 30}, test={"a": 1})
    looked = []
    monkeypatch.setattr("holdfast.data.load_data.SAMPLED", 10)
    monkeypatch.setattr("holdfast.data.splits.peek", lambda path: looked.append(path) or ((6, 6), "RGB"))
    load(root)
    assert len(set(looked)) == 10
    assert {path.parent.name for path in looked} == {"a", "b"}


def test_a_class_called_valid_is_a_class(tmp_path: Path) -> None:
    make_folder(tmp_path, cheques={"valid": 5, "invalid": 5})
    assert load(tmp_path / "cheques").classes == ("invalid", "valid")


def test_images_and_folders_left_out_are_noted(tmp_path: Path) -> None:
    root = make_folder(tmp_path, train={"a": 1, "b": 1}, test={"a": 1}, unlabelled={"x": 1})
    write(root / "train/stray.png")
    notes = [str(note) for note in load(root).notes]
    assert "folders beside train/ are left out: unlabelled" in notes
    assert any("1 images directly in" in note for note in notes)


def refuse(root: Path, message: str) -> None:
    with pytest.raises(HoldfastError, match=message):
        load(root)


def test_an_empty_class_is_named_and_no_class_renumbered(tmp_path: Path) -> None:
    root = make_folder(tmp_path, train={"ant": 2, "bee": 0, "cow": 2}, test={"ant": 1})
    (root / "train/bee/notes.txt").write_text("no image")
    refuse(root, r"class 'bee' \(label 1\) has no training sample; add some, or remove .*files that end in .bmp")


def test_a_class_that_training_lacks_is_named(tmp_path: Path) -> None:
    root = make_folder(tmp_path, train={"ant": 2, "bee": 1}, test={"ant": 1, "cow": 1})
    refuse(root, r"class folder .*test/cow has no counterpart in .*train; remove it, or add")


def test_one_class_only(tmp_path: Path) -> None:
    refuse(make_folder(tmp_path, train={"ant": 2}), r"needs at least two classes, found 1: ant")


def test_no_class_at_all(tmp_path: Path) -> None:
    write(tmp_path / "a.png")
    refuse(tmp_path, r"has no folders in it; expected <class>/ or train/<class>/ with images")


def test_no_image_at_all(tmp_path: Path) -> None:
    refuse(make_folder(tmp_path, train={"ant": 0, "bee": 0}), r"there is no training sample")


def test_a_test_folder_without_a_train_folder(tmp_path: Path) -> None:
    refuse(make_folder(tmp_path, Test={"a": 1}, val={"a": 1}), r"has Test, val but no train folder; add train/<class>/")


def test_an_empty_test_folder(tmp_path: Path) -> None:
    root = make_folder(tmp_path, train={"a": 1, "b": 1}, test={"a": 0})
    refuse(root, r"test holds no images; add some or remove the folder")


def test_two_folders_for_one_split(tmp_path: Path) -> None:
    root = make_folder(tmp_path, train={"a": 1, "b": 1}, val={"a": 1}, valid={"a": 1})
    refuse(root, r"val and .*valid are the same split; keep one")


def test_several_problems_are_counted(tmp_path: Path) -> None:
    root = make_folder(tmp_path, train={"a": 1, "b": 0, "c": 0})
    refuse(root, r"class 'b' .*\(and 1 more; 'holdfast data check' lists all\)")


def test_too_few_samples_to_hold_some_out(tmp_path: Path) -> None:
    root = make_folder(tmp_path, train={"a": 1, "b": 1})
    refuse(root, r"there is no test split, and 2 training samples of 2 classes are too few")


def test_a_truncated_image_is_named_when_it_is_read(tmp_path: Path) -> None:
    root = make_folder(tmp_path, train={"a": 1, "b": 0}, test={"a": 1})
    truncated_jpeg(root / "train/b/half.jpg")
    data: Dataset = load(root)
    with pytest.raises(HoldfastError, match=r"cannot read image .*train/b/half.jpg: .*truncated"):
        data.train.read(torch.arange(2))


def test_a_file_that_is_no_image_is_named_at_once_where_it_is_looked_at(tmp_path: Path) -> None:
    root = make_folder(tmp_path, train={"a": 1, "b": 0}, test={"a": 1})
    shutil.copy(__file__, root / "train/b/text.png")
    refuse(root, r"cannot read image .*train/b/text.png: empty, or not a known image format")
