"""A front is taken up again only where nothing changed; hashes see every pixel."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from PIL import Image

from holdfast.data import ArraySplit, Dataset, load
from holdfast.experiment.audit_files import hash_data, key_of, read_front, write_front
from holdfast.experiment.verdicts import verdicts
from holdfast.fronts import Outcome
from holdfast.types import Finding
from tests.conftest import make_data
from tests.fronts.told import one_hot, split, told

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


def test_verdicts_speak_of_single_images() -> None:
    labels = torch.tensor([0, 0, 1, 1])
    test = split(labels, torch.tensor([0, 1, 0, 1]))
    subject = told(one_hot(torch.tensor([0, 1, 1, 1]), 2), test, group_names=("red", "blue"))
    findings = [
        Finding("groups", "worst-group", 0.0, 1, 0, 1, evidence={"cell": {"class": "c0", "group": "blue"}}),
        Finding("attacks", "error", 0.5, 2, evidence={"verdicts": {"positions": [3, 1], "right": [True, False]}}),
    ]
    assert verdicts(subject, findings) == {
        "clean": ["right", "wrong", "right", "right"],
        "groups": ["", "worst", "", ""],
        "attacks": [None, "wrong", None, "right"],
    }


def test_an_image_names_the_confirmed_slices_it_belongs_to() -> None:
    images = torch.zeros(4, 1, 4, 4, dtype=torch.uint8)
    images[2:] = 200
    subject = told(
        one_hot(torch.zeros(4, dtype=torch.int64), 2), split(torch.zeros(4, dtype=torch.int64), images=images)
    )
    part = {"attribute": "brightness", "side": "above", "value": 0.5}
    findings = [
        Finding("slices", "accuracy", 0.1, 2, where={"slice": "bright"}, evidence={**part, "confirmed": True}),
        Finding("slices", "accuracy", 0.1, 2, where={"slice": "doubtful"}, evidence={**part, "confirmed": False}),
    ]
    assert verdicts(subject, findings)["slices"] == ["", "", "bright", "bright"]
