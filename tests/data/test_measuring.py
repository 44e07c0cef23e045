"""Data that a model is measured on, and nothing trained: parts may be missing that training needs."""

from __future__ import annotations

import csv
import shutil
from pathlib import Path

import pytest
import torch
from PIL import Image

from holdfast.data import Dataset, load
from holdfast.errors import HoldfastError


@pytest.fixture
def photos(tmp_path: Path) -> Path:
    """Classes told by their brightness, six training and four test images each."""
    for split, count in (("train", 6), ("test", 4)):
        for label, name in enumerate(("cat", "dog", "owl")):
            for i in range(count):
                path = tmp_path / "photos" / split / name / f"{i}.png"
                path.parent.mkdir(parents=True, exist_ok=True)
                Image.new("L", (8, 8), 50 * label + 10).save(path)
    return tmp_path / "photos"


def shades(data: Dataset) -> dict[str, int]:
    """The brightness of each class in the test split: what a renumbered label would give to another name."""
    assert data.test is not None
    pixels = data.test.read(torch.arange(len(data.test)))[:, 0, 0, 0]
    return {data.classes[int(y)]: int(p) for y, p in zip(data.test.labels, pixels, strict=True)}


@pytest.mark.parametrize("kept", ["test", "val"])
def test_a_test_or_validation_folder_alone_is_enough(photos: Path, kept: str) -> None:
    shutil.rmtree(photos / "train")
    (photos / "test").rename(photos / kept)
    with pytest.raises(HoldfastError, match=f"has {kept} but no train folder"):
        load(photos)
    data = load(photos, training=False)
    assert data.test is not None
    assert (len(data.train), data.val, len(data.test), data.shape) == (0, None, 12, (1, 8, 8))
    assert shades(data) == {"cat": 10, "dog": 60, "owl": 110}
    assert any("validation split is taken" in note for note in map(str, data.notes)) == (kept == "val")


@pytest.mark.parametrize("empty", ["train", "test", "both"])
def test_an_empty_class_folder_never_renumbers_the_rest(photos: Path, empty: str) -> None:
    for split in ("train", "test") if empty == "both" else (empty,):
        for path in (photos / split / "dog").iterdir():
            path.unlink()
    data = load(photos, training=False)
    assert data.classes == ("cat", "dog", "owl")
    told = {"cat": 10, "dog": 60, "owl": 110}
    assert shades(data) == (told if empty == "train" else {"cat": 10, "owl": 110})
    if empty != "test":
        with pytest.raises(HoldfastError, match="class 'dog' .* has no training sample"):
            load(photos)


def test_a_table_of_test_rows_is_enough(photos: Path) -> None:
    table = photos / "table.csv"
    with table.open("w", encoding="utf-8", newline="") as file:
        rows = [[str(p.relative_to(photos)), p.parent.name, "test"] for p in sorted(photos.glob("test/*/*.png"))]
        csv.writer(file).writerows([["path", "label", "split"], *rows])
    with pytest.raises(HoldfastError, match="not among the training rows"):
        load(table)
    assert shades(load(table, training=False)) == {"cat": 10, "dog": 60, "owl": 110}


def test_classes_that_training_lacks_come_after_its_own(photos: Path) -> None:
    """A model numbers the classes it was trained on: those that only the test part has must not push them on."""
    table = photos / "table.csv"
    rows = [[str(p.relative_to(photos)), p.parent.name, "train"] for p in photos.glob("train/*/*.png")]
    kept = [row for row in rows if row[1] != "cat"]
    kept += [[str(p.relative_to(photos)), p.parent.name, "test"] for p in photos.glob("test/*/*.png")]
    with table.open("w", encoding="utf-8", newline="") as file:
        csv.writer(file).writerows([["path", "label", "split"], *kept])
    shutil.rmtree(photos / "train" / "cat")
    for place in (table, photos):
        data = load(place, training=False)
        assert data.classes == ("dog", "owl", "cat")
        assert shades(data) == {"cat": 10, "dog": 60, "owl": 110}


def test_no_image_at_all_is_still_refused(photos: Path) -> None:
    for path in photos.glob("*/*/*.png"):
        path.unlink()
    with pytest.raises(HoldfastError, match="holds no images"):
        load(photos, training=False)
    shutil.rmtree(photos / "test")
    with pytest.raises(HoldfastError, match="there is no sample"):
        load(photos, training=False)
