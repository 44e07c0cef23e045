"""One door for all sources: names, paths, hold-outs, and the protocol that every source keeps."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from holdfast.data import Split, load
from holdfast.errors import HoldfastError
from tests.data.pictures import write_class_folder


def npz(folder: Path) -> Path:
    x = np.random.default_rng(0).integers(0, 256, (60, 6, 6), dtype=np.uint8)
    np.savez(folder / "set.npz", x_train=x, y_train=np.arange(60) % 3, group_train=np.arange(60) % 2)
    return folder / "set.npz"


def images(folder: Path) -> Path:
    for number, name in enumerate("abc"):
        write_class_folder(folder / "set" / name, 20, seed=number)
    return folder / "set"


def csv(folder: Path) -> Path:
    images(folder)
    rows = [f"set/{name}/{i}.png,{name},{'xy'[i % 2]}" for name in "abc" for i in range(20)]
    (folder / "set.csv").write_text("\n".join(["path,label,group", *rows]))
    return folder / "set.csv"


SOURCES: dict[str, Callable[[Path], str | Path]] = {
    "digits": lambda _: "digits",
    "coloured-digits": lambda _: "coloured-digits",
    "npz": npz,
    "folder": images,
    "csv": csv,
}


@pytest.fixture(params=SOURCES)
def source(request: pytest.FixtureRequest, tmp_path: Path) -> str | Path:
    return SOURCES[request.param](tmp_path)


def names(split: Split | None) -> set[str]:
    assert split is not None
    return {split.describe(i) for i in range(len(split))}


def test_every_source_keeps_the_protocol(source: str | Path) -> None:
    data = load(source, val=0.2)
    for split in (data.train, data.val, data.test):
        assert split is not None
        images = split.read(torch.tensor([len(split) - 1, 0]))
        assert (images.dtype, images.shape) == (torch.uint8, (2, *data.shape))
        assert split.shape == data.shape
        assert (split.labels.dtype, split.groups.dtype) == (torch.int64, torch.int64)
        assert set(split.labels.tolist()) == set(range(data.num_classes))
        assert split.groups.min() >= -1
        assert split.groups.max() < max(1, len(data.group_names))
        assert len(split.labels) == len(split.groups) == len(split)


def test_every_source_holds_out_disjoint_parts_by_class(source: str | Path) -> None:
    whole, cut = load(source), load(source, val=0.25)
    assert names(cut.test) == names(whole.test)
    assert names(cut.train) | names(cut.val) == names(whole.train)
    assert not names(cut.train) & names(cut.val)
    assert cut.val is not None
    share = torch.bincount(cut.val.labels) / torch.bincount(whole.train.labels)
    assert ((share - 0.25).abs() < 0.05).all()


def test_every_source_repeats_under_a_seed_and_changes_with_it(source: str | Path) -> None:
    torch.manual_seed(3)
    first = load(source, val=0.25, data_seed=7)
    torch.manual_seed(4)
    again = load(source, val=0.25, data_seed=7)
    other = load(source, val=0.25, data_seed=8)
    for split in ("train", "val", "test"):
        a, b = getattr(first, split), getattr(again, split)
        assert [a.describe(i) for i in range(len(a))] == [b.describe(i) for i in range(len(b))]
        assert torch.equal(a.read(torch.arange(len(a))), b.read(torch.arange(len(b))))
        assert torch.equal(a.groups, b.groups)
    assert names(other.test) != names(first.test)
    assert names(other.val) != names(first.val)


def test_the_validation_split_follows_the_seed_where_the_test_split_is_given(tmp_path: Path) -> None:
    for split in ("train", "test"):
        for number, name in enumerate("abc"):
            write_class_folder(tmp_path / split / name, 12, seed=number)
    first, again, other = (load(tmp_path, val=0.25, data_seed=seed) for seed in (0, 0, 1))
    assert names(first.val) == names(again.val) != names(other.val)
    assert names(first.test) == names(other.test)


def test_image_size_holds_for_every_source(source: str | Path) -> None:
    assert load(source, image_size=9).shape[1:] == (9, 9)


def test_a_folder_of_the_same_name_is_reached_by_its_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    images(tmp_path).rename(tmp_path / "digits")
    monkeypatch.chdir(tmp_path)
    assert load("digits").num_classes == 10
    assert load("./digits").classes == load(Path("digits")).classes == ("a", "b", "c")


def test_an_uppercase_ending_and_a_home_folder_are_understood(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    npz(tmp_path).rename(tmp_path / "SET.NPZ")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert load("~/SET.NPZ").num_classes == 3


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("cifra10", r"unknown data set 'cifra10'; did you mean 'cifar10'.* \(nor is there a file or folder"),
        ("qqq", r"unknown data set 'qqq'; known: digits, .*nor is there a file or folder of that name"),
        ("some/where", r"no such file or folder: some/where; correct the path"),
        ("x" * 5000, r"cannot read x+: File name too long"),
        ("~no-such-user/set", r"no such file or folder: ~no-such-user/set"),
        ("gone.npz", r"no such file or folder: gone.npz"),
        (Path("gone"), r"no such file or folder: gone"),
        ("", r"no data was given; give a name \(holdfast list data\), .*a folder of images, or a file"),
    ],
)
def test_names_and_paths_that_do_not_exist(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str | Path, message: str
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(HoldfastError, match=message):
        load(name)


def test_a_file_of_another_kind_is_refused(tmp_path: Path) -> None:
    (tmp_path / "set.zip").touch()
    with pytest.raises(HoldfastError, match=r"cannot tell what .*set.zip holds; .* ends in .npz, .npy, .csv, .parquet"):
        load(tmp_path / "set.zip")


@pytest.mark.parametrize("val", [-0.1, 1.0, float("nan")])
def test_an_impossible_validation_share(val: float) -> None:
    with pytest.raises(HoldfastError, match=rf"val must be in \[0, 1\), got {val}"):
        load("digits", val=val)


def test_a_validation_share_too_small_to_hold_anything_out(tmp_path: Path) -> None:
    with pytest.raises(HoldfastError, match=r"val 0.001 holds out none of 48 training samples of 3 classes; give a"):
        load(npz(tmp_path), val=0.001)


@pytest.mark.parametrize("size", [0, -5, 4097])
def test_an_impossible_image_size(size: int) -> None:
    with pytest.raises(HoldfastError, match=rf"image_size must be in 1..4096, got {size}"):
        load("digits", image_size=size)


def test_an_impossible_seed() -> None:
    with pytest.raises(HoldfastError, match=r"data_seed must be in 0..2\*\*63-1, got -1"):
        load("digits", data_seed=-1)


def test_a_share_of_conflict_is_refused_by_data_that_is_not_made(tmp_path: Path) -> None:
    for source in ("digits", npz(tmp_path), images(tmp_path)):
        with pytest.raises(HoldfastError, match="conflict 0.05 is for data made with a shortcut"):
            load(source, conflict=0.05)
    default, given = (load("coloured-digits", conflict=c).train for c in (None, 0.05))
    assert torch.equal(default.groups, given.groups)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"val": "x"}, r"val must be in \[0, 1\), got 'x'"),
        ({"val": None}, r"val must be in \[0, 1\), got None"),
        ({"image_size": "32"}, r"image_size must be in 1\.\.4096, got '32'"),
        ({"data_seed": 1.5}, r"data_seed must be in 0\.\..*, got 1\.5"),
    ],
)
def test_values_of_another_kind_are_named(given: dict[str, Any], message: str) -> None:
    with pytest.raises(HoldfastError, match=message):
        load("digits", **given)


@pytest.mark.parametrize("kind", ["folder", "table", "npz"])
def test_how_many_classes_there_must_be_is_for_the_caller_to_say(tmp_path: Path, kind: str) -> None:
    write_class_folder(tmp_path / "set" / "only", 20)
    (tmp_path / "set.csv").write_text("path,label\n" + "".join(f"set/only/{i}.png,only\n" for i in range(20)))
    np.savez(tmp_path / "set.npz", x_train=np.zeros((20, 6, 6), np.uint8), y_train=np.zeros(20, int))
    path = tmp_path / {"folder": "set", "table": "set.csv", "npz": "set.npz"}[kind]
    found = load(path, least_classes=1)
    assert found.test is not None
    assert (found.num_classes, len(found.train), len(found.test)) == (1, 16, 4)
    with pytest.raises(HoldfastError, match="a classifier needs at least two classes, found 1"):
        load(path)
    with pytest.raises(HoldfastError, match="at least 3 classes are needed, found 1"):
        load(path, least_classes=3)
