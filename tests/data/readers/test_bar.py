"""BAR in its published folders, and the seeded rule of its splits."""

from __future__ import annotations

import io
from pathlib import Path

import pytest
import torch
from PIL import Image

from holdfast.data import FileSplit, load
from holdfast.data.readers import bar as layout
from holdfast.errors import HoldfastError
from holdfast.quality import check_data
from tests.data.pictures import noise, write

ACTIONS = ("climbing", "diving", "fishing", "pole vaulting", "racing", "throwing")


@pytest.fixture
def root(tmp_path: Path) -> Path:
    for k, action in enumerate(ACTIONS):
        for i in range(30):
            write(tmp_path / f"BAR/train/{action}_{i}.jpg", noise(8, 8, seed=k))
        for i in range(20):
            write(tmp_path / f"BAR/test/{action}_{i}.jpg", noise(8, 8, seed=k))
    png = io.BytesIO()
    Image.fromarray(noise(8, 8, seed=99)).save(png, "PNG")
    (tmp_path / "BAR/test/racing_3.jpg").write_bytes(png.getvalue())
    return tmp_path


def names(split: object) -> set[str]:
    assert isinstance(split, FileSplit)
    return {path.name for path in split.paths}


@pytest.mark.parametrize("how", ["root", "root is the folder", "path"])
def test_the_published_set_is_aligned_in_training_and_conflicting_in_test(root: Path, how: str) -> None:
    data = load(root / "BAR") if how == "path" else load("bar", root=root if how == "root" else root / "BAR")
    assert data.classes == ACTIONS
    assert (len(data.train), len(data.test or ())) == (180, 120)
    assert data.train.groups.unique().tolist() == [0]
    assert data.test is not None
    assert data.test.groups.unique().tolist() == [1]
    assert set(data.usual_groups.tolist()) == {0}  # the set says which images are aligned
    assert isinstance(data.train, FileSplit)
    for path, label in zip(data.train.paths, data.train.labels.tolist(), strict=True):
        assert path.name.startswith(ACTIONS[label])


@pytest.mark.parametrize(("name", "count"), [("bar-1pct", 17), ("bar-5pct", 94)])
def test_the_splits_move_so_many_test_images_and_lose_none(root: Path, name: str, count: int) -> None:
    data, plain = load(name, root=root), load("bar", root=root)
    assert len(data.train) == 180 + count
    assert int((data.train.groups == 1).sum()) == count
    assert isinstance(data.train, FileSplit)
    assert isinstance(data.test, FileSplit)
    moved = {p for p, g in zip(data.train.paths, data.train.groups.tolist(), strict=True) if g == 1}
    assert all(path.parent.name == "test" for path in moved)
    assert not moved & set(data.test.paths)
    assert isinstance(plain.test, FileSplit)
    assert moved | set(data.test.paths) == set(plain.test.paths)
    assert any("were moved into training" in note for note in map(str, data.notes))


def test_the_choice_is_the_seeds_and_not_the_folders(root: Path, tmp_path: Path) -> None:
    first = load("bar-1pct", root=root)
    (root / "BAR").rename(root / "moved")
    again, other = (load("bar-1pct", root=root / "moved", data_seed=s) for s in (0, 1))
    assert names(first.test) == names(again.test)
    assert names(first.test) != names(other.test)


def test_a_png_named_jpg_is_read(root: Path) -> None:
    data = load("bar", root=root)
    assert isinstance(data.test, FileSplit)
    at = [path.name for path in data.test.paths].index("racing_3.jpg")
    assert torch.equal(data.test.read(torch.tensor([at]))[0], torch.from_numpy(noise(8, 8, seed=99)).permute(2, 0, 1))
    assert check_data("bar", root=root).sound


def test_other_flat_folders_are_not_taken_for_it(tmp_path: Path) -> None:
    for part in ("train", "test"):
        write(tmp_path / part / "cat_1.jpg", noise(8, 8))
    assert layout.recognised(tmp_path)
    assert not layout.unmistakable(tmp_path)


def test_too_few_test_images_for_the_split_are_named(tmp_path: Path) -> None:
    for action in ACTIONS:
        for part in ("train", "test"):
            write(tmp_path / f"{part}/{action}_0.jpg", noise(8, 8))
    with pytest.raises(HoldfastError, match="test folder has 6 images, of which 17 should move into training"):
        load("bar-1pct", root=tmp_path)


def test_where_it_is_not_there_the_message_says_what_was_expected(tmp_path: Path) -> None:
    with pytest.raises(HoldfastError, match=r"no BAR in .*: expected BAR/train/ and BAR/test/"):
        load("bar", root=tmp_path)


def test_a_test_class_that_training_lacks_is_named(root: Path) -> None:
    write(root / "BAR/test/juggling_1.jpg", noise(8, 8))
    with pytest.raises(HoldfastError, match="class 'juggling' of test/ has no image in train/"):
        load("bar", root=root)
