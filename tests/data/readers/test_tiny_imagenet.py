"""Tiny ImageNet in its published layout."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from holdfast.data import FileSplit, load
from holdfast.errors import HoldfastError
from tests.data.pictures import smooth, write

WORDS = {"n02": "goldfish, Carassius auratus", "n01": "tench", "n09": "not in this set"}


@pytest.fixture
def root(tmp_path: Path) -> Path:
    folder = tmp_path / "tiny-imagenet-200"
    for wnid in ("n02", "n01"):
        for i in range(3):
            write(folder / f"train/{wnid}/images/{wnid}_{i}.JPEG", smooth(64, 64))
        (folder / f"train/{wnid}/{wnid}_boxes.txt").write_text("n02_0.JPEG\t0\t0\t9\t9\n")
    for i in range(3):
        write(folder / f"val/images/val_{i}.JPEG", smooth(64, 64))
    (folder / "val/val_annotations.txt").write_text(
        "".join(f"val_{i}.JPEG\t{wnid}\t0\t32\t44\t62\n" for i, wnid in enumerate(("n02", "n01", "n02")))
    )
    (folder / "wnids.txt").write_text("n02\nn01\n")
    (folder / "words.txt").write_text("".join(f"{wnid}\t{name}\n" for wnid, name in WORDS.items()))
    return tmp_path


@pytest.mark.parametrize("how", ["root", "root is the folder", "path"])
def test_classes_names_and_labels_follow_the_files(root: Path, how: str) -> None:
    folder = root / "tiny-imagenet-200"
    where = {"root": root, "root is the folder": folder}.get(how)
    data = load(folder) if where is None else load("tiny-imagenet", root=where)
    assert data.classes == ("tench", "goldfish, Carassius auratus")
    assert data.shape == (3, 64, 64)
    assert isinstance(data.train, FileSplit)
    assert [p.name for p in data.train.paths] == [f"{w}_{i}.JPEG" for w in ("n01", "n02") for i in range(3)]
    assert data.train.labels.tolist() == [0, 0, 0, 1, 1, 1]
    assert isinstance(data.test, FileSplit)
    assert [p.name for p in data.test.paths] == ["val_0.JPEG", "val_1.JPEG", "val_2.JPEG"]
    assert data.test.labels.tolist() == [1, 0, 1]
    assert len(data.test.read(torch.arange(3))) == 3


def test_classes_that_share_a_name_are_told_apart_by_their_id(root: Path) -> None:
    (root / "tiny-imagenet-200/words.txt").write_text("n01\tcrane\nn02\tcrane\n")
    assert load("tiny-imagenet", root=root).classes == ("crane (n01)", "crane (n02)")


def test_an_annotation_of_another_class_is_named(root: Path) -> None:
    with (root / "tiny-imagenet-200/val/val_annotations.txt").open("a") as file:
        file.write("val_3.JPEG\tn77\t0\t0\t1\t1\n")
    with pytest.raises(
        HoldfastError, match=r"line 4 of val/val_annotations.txt names the class 'n77', which wnids.txt"
    ):
        load("tiny-imagenet", root=root)


def test_a_class_without_images_is_named(root: Path) -> None:
    with (root / "tiny-imagenet-200/wnids.txt").open("a") as file:
        file.write("n09\n")
    with pytest.raises(HoldfastError, match=r"class 'not in this set' \(label 2\) has no training sample"):
        load("tiny-imagenet", root=root)


def test_where_it_is_not_there_the_message_says_how_to_get_it(tmp_path: Path) -> None:
    with pytest.raises(HoldfastError, match=r"cannot read .*tiny-imagenet-200/wnids.txt .*; get http.*zip and unpack"):
        load("tiny-imagenet", root=tmp_path)
