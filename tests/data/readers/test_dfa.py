"""DFA's biased CIFAR-10 and BFFHQ in their published folders."""

from __future__ import annotations

from pathlib import Path

import pytest

from holdfast.data import FileSplit, load
from holdfast.errors import HoldfastError
from tests.data.pictures import noise, write


def cifar(folder: Path, share: str = "1pct") -> Path:
    """Three aligned and one conflicting image a class."""
    for label in range(10):
        for i in range(3):
            write(folder / f"cifar10c/{share}/align/{label}/{i}_{label}_{label}.png", noise(8, 8, seed=label))
        bias = (label + 3) % 10
        write(folder / f"cifar10c/{share}/conflict/{label}/9_{label}_{bias}.png", noise(8, 8, seed=label))
        write(folder / f"cifar10c/{share}/valid/{label}/20_{label}_{(label + 1) % 10}.png", noise(8, 8))
        write(folder / f"cifar10c/test/{label}/30_{label}_{(label + 2) % 10}.png", noise(8, 8))
    return folder


@pytest.mark.parametrize("how", ["share", "set", "name", "name in the set's folder"])
def test_cifar10c_by_path_and_by_name(tmp_path: Path, how: str) -> None:
    cifar(tmp_path)
    if how == "share":
        data = load(tmp_path / "cifar10c/1pct")
    elif how == "set":
        data = load(tmp_path / "cifar10c")
    else:
        data = load("cifar10c-1pct", root=tmp_path if how == "name" else tmp_path / "cifar10c")
    assert data.classes[:2] == ("airplane", "automobile")
    assert (len(data.train), len(data.val or ()), len(data.test or ())) == (40, 10, 10)
    assert int((data.train.groups != data.train.labels).sum()) == 10
    assert isinstance(data.train, FileSplit)
    for path, label, group in zip(data.train.paths, data.train.labels, data.train.groups, strict=True):
        assert path.stem.split("_")[1:] == [str(int(label)), str(int(group))]
    assert data.test is not None
    assert data.test.groups.tolist() == [(k + 2) % 10 for k in range(10)]


def test_several_shares_must_be_told_apart(tmp_path: Path) -> None:
    cifar(cifar(tmp_path), "5pct")
    with pytest.raises(HoldfastError, match=r"holds these shares of conflicting images: 1pct, 5pct; name the folder"):
        load(tmp_path / "cifar10c")
    assert len(load("cifar10c-5pct", root=tmp_path).train) == 40


def test_bffhq_has_flat_held_out_folders(tmp_path: Path) -> None:
    for label in (0, 1):
        for i in range(4):
            write(tmp_path / f"bffhq/0.5pct/align/{label}/{i}_{label}_{label}.png", noise(8, 8, seed=i))
        write(tmp_path / f"bffhq/0.5pct/conflict/{label}/9_{label}_{1 - label}.png", noise(8, 8))
        for part in ("valid", "test"):
            write(tmp_path / f"bffhq/{part}/{label}7_{label}_{1 - label}.png", noise(8, 8))
    data = load("bffhq", root=tmp_path)
    assert data.classes == ("young", "old")
    assert data.group_names == ("woman", "man")
    assert (len(data.train), len(data.val or ()), len(data.test or ())) == (10, 2, 2)
    assert data.test is not None
    assert data.test.labels.tolist() == [0, 1]
    assert data.test.groups.tolist() == [1, 0]


def test_a_file_that_does_not_say_its_class_is_named(tmp_path: Path) -> None:
    cifar(tmp_path)
    write(tmp_path / "cifar10c/1pct/align/0/cover.png", noise(8, 8))
    with pytest.raises(HoldfastError, match="cover.png is not named <id>_<class>_<bias>"):
        load(tmp_path / "cifar10c/1pct")


def test_where_it_is_not_there_the_message_says_where_it_was_looked_for(tmp_path: Path) -> None:
    with pytest.raises(HoldfastError, match=r"no cifar10c-2pct in .*, nor in .*cifar10c/2pct; put the set there"):
        load("cifar10c-2pct", root=tmp_path)


def test_a_name_never_gives_another_share(tmp_path: Path) -> None:
    cifar(tmp_path, "5pct")
    with pytest.raises(HoldfastError, match="no cifar10c-.*pct in"):
        load("cifar10c-1pct", root=tmp_path / "cifar10c/5pct")
