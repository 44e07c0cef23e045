"""A front is taken up again only where nothing changed; hashes see every pixel."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from PIL import Image

from holdfast.data import ArraySplit, Dataset, load
from holdfast.experiment.audit.files import Redaction, hash_data, key_of, read_front, without_pictures, write_front
from holdfast.fronts import Outcome
from holdfast.types import Finding
from tests.conftest import make_data

OUTCOME = Outcome(
    "clean", "measured", (Finding("clean", "accuracy", 1 / 3, 9, 0.1, 0.6),), "", {"images": 9}, 1.25, ("x",)
)


def test_a_front_comes_back_whole_under_its_key_and_not_under_another(tmp_path: Path) -> None:
    write_front(tmp_path, OUTCOME, "key")
    assert read_front(tmp_path, "clean", "key") == OUTCOME
    assert read_front(tmp_path, "clean", "other") is None
    assert read_front(tmp_path, "groups", "key") is None


def test_a_crash_is_tried_again(tmp_path: Path) -> None:
    write_front(tmp_path, Outcome("clean", "crashed", reason="boom"), "key")
    assert read_front(tmp_path, "clean", "key") is None


@pytest.mark.parametrize("keep", [0, 1, 60, -5])
def test_a_truncated_front_is_measured_again(tmp_path: Path, keep: int) -> None:
    write_front(tmp_path, OUTCOME, "key")
    path = tmp_path / "clean.json"
    path.write_bytes(path.read_bytes()[:keep])
    assert read_front(tmp_path, "clean", "key") is None


def test_keys_depend_on_values_and_not_on_their_order() -> None:
    assert key_of({"a": 1, "b": [2]}) == key_of({"b": [2], "a": 1}) != key_of({"a": 1, "b": [3]})


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
    assert hash_data(data) == hash_data(changed(data, "nothing"))
    assert hash_data(data)["hash"] != hash_data(changed(data, what))["hash"]


def test_the_hash_of_files_is_that_of_their_contents(tmp_path: Path) -> None:
    def make(name: str, shade: int) -> dict[str, str]:
        for label in ("cat", "dog"):
            (tmp_path / name / label).mkdir(parents=True)
            for i in range(10):
                Image.new("L", (4, 4), shade + i).save(tmp_path / name / label / f"{i}.png")
        return hash_data(load(tmp_path / name))

    first, moved, other = make("a", 0), make("b", 0), make("c", 1)
    assert first["hash_over"] == "files"
    assert first == moved
    assert first["hash"] != other["hash"]


def test_a_picture_takes_along_what_describes_it() -> None:
    picture = {"png": "iVBORw0KGgoAAA", "label": "cat"}
    found = Finding(
        "clean", "samples", None, 0, evidence={"pictures": [picture], "curve": [1, 2], "grid": "iVBORw0KGgo"}
    )
    assert without_pictures(found).evidence == {"pictures": [], "curve": [1, 2]}


def test_redaction_leaves_the_name_of_a_file(tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    redaction = Redaction([tmp_path / "data"])
    assert redaction.value({"spec": f"{tmp_path}/data/x.png", "n": 3}) == {"spec": "…/x.png", "n": 3}
