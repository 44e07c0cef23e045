"""Hashes of data see every pixel, and not where it lies."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from PIL import Image

from holdfast.data import ArraySplit, Dataset, load
from holdfast.data.splits import hash_data
from tests.conftest import make_data


def hash_test(data: Dataset) -> dict[str, str]:
    return hash_data(data, (data.test,))


def changed(data: Dataset, what: str) -> Dataset:
    assert isinstance(data.test, ArraySplit)
    images, labels, groups = (t.clone() for t in (data.test.images, data.test.labels, data.test.groups))
    if what == "pixel":
        images[-1, 0, 0, 0] += 1
    elif what == "label":
        labels[0] = (labels[0] + 1) % 3
    elif what == "group":
        groups[0] = 1 - groups[0]
    elif what == "class name":
        return replace(data, classes=("x", *data.classes[1:]))
    return replace(data, test=replace(data.test, images=images, labels=labels, groups=groups))


@pytest.mark.parametrize("what", ["pixel", "label", "group", "class name"])
def test_the_hash_of_data_sees_every_change(what: str) -> None:
    data = make_data(groups=2)
    assert hash_test(data) == hash_test(changed(data, "nothing"))
    assert hash_test(data)["hash"] != hash_test(changed(data, what))["hash"]


def test_the_hash_of_files_is_that_of_their_contents(tmp_path: Path) -> None:
    def make(name: str, shade: int) -> dict[str, str]:
        for label in ("cat", "dog"):
            (tmp_path / name / label).mkdir(parents=True)
            for i in range(10):
                Image.new("L", (4, 4), shade + i).save(tmp_path / name / label / f"{i}.png")
        return hash_test(load(tmp_path / name))

    first, moved, other = make("a", 0), make("b", 0), make("c", 1)
    assert first["hash_over"] == "files"
    assert first == moved
    assert first["hash"] != other["hash"]
