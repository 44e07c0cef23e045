"""MetaShift's cat against dog; its pickle is read as data or not at all."""

from __future__ import annotations

import json
import os
import pickle
from collections import defaultdict
from pathlib import Path
from typing import Any

import pytest

from holdfast.data import FileSplit, load
from holdfast.errors import HoldfastError
from tests.data.pictures import noise, write

TABLE = {"11": ["cat(sofa)", "cat(bed)"], "12": ["cat(bed)"], "21": ["dog(bench)"], "13": ["cat(shelf)"]}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for name, images in {
        "train/cat": ("11", "12"),
        "train/dog": ("21", "22"),
        "val_out_of_domain/cat": ("13",),
        "val_out_of_domain/dog": ("23",),
    }.items():
        for image in images:
            write(tmp_path / "metashift" / name / f"{image}.jpg", noise(8, 8))
    return tmp_path / "metashift"


@pytest.mark.parametrize("form", ["pkl", "json"])
@pytest.mark.parametrize("how", ["path", "name"])
def test_groups_are_contexts(folder: Path, form: str, how: str) -> None:
    content = pickle.dumps(TABLE) if form == "pkl" else json.dumps(TABLE).encode()
    (folder / f"imageID_to_group.{form}").write_bytes(content)
    data = load(folder) if how == "path" else load("metashift", root=folder.parent)
    assert data.classes == ("cat", "dog")
    assert data.group_names == ("bed", "bench", "shelf", "sofa")
    assert isinstance(data.train, FileSplit)
    assert [path.stem for path in data.train.paths] == ["11", "12", "21", "22"]
    assert data.train.labels.tolist() == [0, 0, 1, 1]
    assert data.train.groups.tolist() == [3, 0, 1, -1]
    assert data.test is not None
    assert data.test.groups.tolist() == [2, -1]


@pytest.mark.parametrize("protocol", [0, 2, 4])
def test_the_published_kinds_of_table_are_read(folder: Path, protocol: int) -> None:
    of_images: defaultdict[str, set[str]] = defaultdict(set)
    for image, groups in TABLE.items():
        of_images[image] |= set(groups)
    of_contexts = {"cat(bed)": ["11", "12"], "dog(bench)": ["21"], "cat(shelf)": ["13"]}
    for table in (of_images, of_contexts):
        (folder / "imageID_to_group.pkl").write_bytes(pickle.dumps(table, protocol=protocol))
        data = load(folder)
        assert data.group_names == ("bed", "bench", "shelf")
        assert data.train.groups.tolist() == [0, 0, 1, -1]


def test_without_a_table_groups_are_unknown_and_a_note_says_so(folder: Path) -> None:
    data = load(folder)
    assert data.train.groups.unique().tolist() == [-1]
    assert any("groups of its images are not known" in note for note in map(str, data.notes))


class Evil:
    def __init__(self, mark: Path) -> None:
        self.mark = mark

    def __reduce__(self) -> Any:
        return os.mkdir, (str(self.mark),)


def test_code_in_the_pickle_does_not_run(folder: Path, tmp_path: Path) -> None:
    mark = tmp_path / "ran"
    (folder / "imageID_to_group.pkl").write_bytes(pickle.dumps({"11": Evil(mark)}))
    with pytest.raises(HoldfastError, match=r"is refused \(it asks for posix.mkdir\): only plain dicts"):
        load(folder)
    assert not mark.exists()


@pytest.mark.parametrize("content", [b"", b"\x80\x04]q\x00.", b"not a pickle"])
def test_a_damaged_table_is_named(folder: Path, content: bytes) -> None:
    (folder / "imageID_to_group.pkl").write_bytes(content)
    with pytest.raises(HoldfastError, match=r"imageID_to_group.pkl (is refused|does not hold a dict)"):
        load(folder)


def test_a_damaged_table_reserves_no_memory(folder: Path) -> None:
    (folder / "imageID_to_group.pkl").write_bytes(b"\x80\x02]r\xff\xff\xff\x7f.")
    with pytest.raises(HoldfastError, match=r"is refused \(a damaged pickle \(object 2147483647 at byte 3\)\)"):
        load(folder)


def test_a_number_of_thousands_of_digits_is_a_context_like_any_other(folder: Path) -> None:
    (folder / "imageID_to_group.pkl").write_bytes(pickle.dumps({"11": 10**5000, 10**5000: "cat(bed)"}))
    assert load(folder).train.groups.tolist()[1:] == [-1, -1, -1]
