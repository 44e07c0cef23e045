"""``holdfast audit RUN`` knows the data: that of the run, as run.yaml says."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

import holdfast
from holdfast.cli import main
from holdfast.data.splits import all_images
from holdfast.train import fit
from tests.conftest import make_data

QUICK: dict[str, Any] = {"epochs": 1, "device": "cpu", "batch_size": 64, "progress": False}
CPU = ["--device", "cpu", "--workers", "0", "--checks", "accuracy"]


def accuracy(folder: Path) -> tuple[float, int]:
    found = json.loads((folder / "findings.json").read_text())["findings"]
    return next((f["value"], f["n"]) for f in found if f["name"] == "accuracy" and not f["where"])


@pytest.fixture
def at(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("GITHUB_STEP_SUMMARY", raising=False)
    return tmp_path


def write_npz(path: Path) -> int:
    """A small set with a test split; how many images that has."""
    data = make_data()
    splits: dict[str, Any] = dict(data.splits)
    named = {f"x_{name}": np.asarray(split.images) for name, split in splits.items()}
    np.savez(path, **named, **{f"y_{name}": np.asarray(split.labels) for name, split in splits.items()})
    return len(splits["test"])


def test_the_data_of_a_run_is_taken_and_named(at: Path, capsys: pytest.CaptureFixture[str]) -> None:
    n = write_npz(at / "own.npz")
    fit("own.npz", out=at / "run", **QUICK)
    assert main(["audit", "run", *CPU]) == 0
    out, err = capsys.readouterr()
    assert "data: own.npz, which run was trained on; --data names another" in " ".join(err.split())
    assert "run on own" in out
    assert main(["audit", "run", *CPU, "--data", "own.npz", "--out", "named"]) == 0
    assert "trained on; --data" not in capsys.readouterr().err
    assert accuracy(at / "audits" / "run-own") == accuracy(at / "named")
    assert accuracy(at / "named")[1] == n
    in_python = holdfast.audit(at / "run", checks=["accuracy"], device="cpu")
    assert (in_python["accuracy"].value, in_python["accuracy"].n) == accuracy(at / "named")
    assert any(note.code == "data-of-run" for note in in_python.notes)


def test_an_audit_records_how_its_model_was_trained_and_how_commands_name_the_data(at: Path) -> None:
    """A report proposes neither the method that was used, nor a command that names data by a title."""
    (at / "sub").mkdir()
    write_npz(at / "sub" / "own.npz")
    run = fit("sub/own.npz", out=at / "run", method="lff", **QUICK)
    expected = {"method": "lff", "ascent": "none", "auto_augment": "none"}
    for model in ("run", run):
        (file,) = holdfast.audit(model, "sub/own.npz", checks=["accuracy"], device="cpu", progress=False).files
        assert file.model["trained"] == expected
        assert (file.data["name"], file.data["spec"]) == ("own.npz", "sub/own.npz")
    fit(make_data(), out=at / "memory", **QUICK)
    (file,) = holdfast.audit("memory", make_data(), checks=["accuracy"], device="cpu", progress=False).files
    assert file.model["trained"]["own_data"]
    assert file.data["spec"] == "", "no command can name it"
    (at / "memory" / "run.yaml").write_text("data: [")
    (file,) = holdfast.audit("memory", make_data(), checks=["accuracy"], device="cpu", progress=False).files
    assert "trained" not in file.model, "the model is what counts"


def test_a_path_is_found_from_another_folder_and_missed_where_it_is_gone(
    at: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    n = write_npz(at / "own.npz")
    fit("own.npz", out="run", **QUICK)
    (at / "elsewhere").mkdir()
    monkeypatch.chdir(at / "elsewhere")
    assert main(["audit", "../run", *CPU, "--out", "out"]) == 0
    assert accuracy(Path("out"))[1] == n
    (at / "own.npz").unlink()
    assert main(["audit", "../run", *CPU, "--out", "gone"]) == 2
    assert "own.npz, which is not there any more; name the data with --data" in capsys.readouterr().err
    assert not Path("gone").exists()


def test_a_set_in_memory_must_be_named(at: Path, capsys: pytest.CaptureFixture[str]) -> None:
    fit(make_data(), out="run", **QUICK)
    assert main(["audit", "run", *CPU]) == 2
    assert "run was trained on a set in memory (bars); name the data with --data" in capsys.readouterr().err


def test_a_run_that_was_trained_too_briefly_is_not_accused_of_wrong_preprocessing(at: Path) -> None:
    """Its preprocessing is known; a network that has learned nothing may do better with any other by chance."""
    fit("coloured-digits", out=at / "run", **{**QUICK, "batch_size": 600})
    found = holdfast.audit(at / "run", checks=["accuracy"], device="cpu")
    assert not any(note.code == "preprocessing" for note in found.warnings)
    assert found.files[0].model["rivals"] == []
    asked = holdfast.audit(at / "run", checks=["accuracy"], device="cpu", preprocessing="bytes")
    assert asked.files[0].model["rivals"] != [], "what was asked for may be wrong"


def test_a_run_with_few_labels_is_audited_beside_the_images_that_it_was_trained_on(at: Path) -> None:
    """Curvature is of the training loss: images without a label for the run have no part in it."""
    write_npz(at / "own.npz")
    run = fit("own.npz", out=at / "run", labels=12, **QUICK)
    same: dict[str, Any] = {"checks": ["curvature"], "settings": {"curvature": {"images": 96}}, "device": "cpu"}
    for model in ("run", run):
        audit = holdfast.audit(model, "own.npz", progress=False, **same)
        assert audit["top_eigenvalue"].n == 12
        assert audit.files[0].data["labels"] == 12
    other = fit("own.npz", out=at / "other", **QUICK)
    assert holdfast.audit(other, "own.npz", progress=False, **same)["top_eigenvalue"].n == 96


def write_folder(root: Path, classes: dict[str, int], *, parts: dict[str, int]) -> None:
    """Grey pictures, the brighter the higher the number of their class."""
    rng = np.random.default_rng(0)
    for part, count in parts.items():
        for name, number in classes.items():
            (root / part / name).mkdir(parents=True)
            for i in range(count):
                pixels = (80 * number + rng.integers(0, 20, (8, 8))).astype(np.uint8)
                Image.fromarray(pixels).save(root / part / name / f"{i}.png")


BOTH = {"train": 30, "test": 20}


@pytest.mark.filterwarnings("ignore:2 of the data's", "ignore:the model does not know zebu")
@pytest.mark.parametrize("kept", [True, False])
def test_a_run_in_hand_is_audited_as_its_folder_is(at: Path, kept: bool) -> None:
    """On other data too: by the names of its classes, not their places; at its image size; told by its folder."""
    write_folder(at / "photos", {"ant": 0, "bee": 1, "cat": 2}, parts=BOTH)
    write_folder(at / "two", {"bee": 1, "cat": 2}, parts=BOTH)
    write_folder(at / "renamed", {"bee": 1, "cat": 2, "zebu": 0}, parts=BOTH)
    options: dict[str, Any] = {**QUICK, "epochs": 8, "batch_size": 16, "model": "convnet", "image_size": 6}
    fit("photos", out="run", **options)
    run = fit("photos", out=at / "again" if kept else None, **options)
    for data in ("photos", "two", "renamed"):
        by_folder, in_hand = (
            holdfast.audit(model, data, checks=["accuracy"], device="cpu", progress=False, preprocessing="stated")
            for model in ("run", run)
        )
        assert by_folder["accuracy"].value == 1.0
        assert [(f.name, f.where, f.value, f.n) for f in in_hand.findings] == [
            (f.name, f.where, f.value, f.n) for f in by_folder.findings
        ]
        ours, theirs = in_hand.files[0].model, by_folder.files[0].model
        same = ("hash", "classes", "preprocessing", "output")
        assert [ours.get(key) for key in same] == [theirs.get(key) for key in same]
        assert in_hand.files[0].data["shape"] == by_folder.files[0].data["shape"] == [1, 6, 6]
        assert (ours["source"], ours["spec"]) == (("run", str(at / "again")) if kept else ("module", "convnet"))


def test_labels_without_names_are_the_places_of_a_runs_classes(at: Path) -> None:
    write_folder(at / "photos", {"ant": 0, "bee": 1, "cat": 2}, parts=BOTH)
    run = fit("photos", model="convnet", **{**QUICK, "epochs": 8, "batch_size": 16})
    test = holdfast.data.load("photos").test
    assert test is not None
    found = holdfast.audit(run, {"test": (all_images(test), test.labels)}, checks=["accuracy"], device="cpu")
    assert found["accuracy"].value == 1.0
    assert found.files[0].model["classes"]["how"] == "in order, as asked"


def test_a_run_in_hand_meets_no_image_that_it_was_trained_on(at: Path) -> None:
    """A set without a test split is cut as the run cut it, for the run and its folder alike; other data is not."""
    data = make_data(200)
    np.savez(at / "lone.npz", x_train=np.asarray(data.train.images), y_train=np.asarray(data.train.labels))
    run = fit("lone.npz", out=at / "run", data_seed=3, val=0.2, **QUICK)
    audits = [
        holdfast.audit(m, "lone.npz", checks=["accuracy"], device="cpu", progress=False) for m in (at / "run", run)
    ]
    assert len({audit.files[0].data["hash"] for audit in audits}) == 1
    assert [audit.files[0].data["val"] for audit in audits] == [0.2, 0.2]
    assert run.trained_on("lone.npz")
    assert run.trained_on(str(at / "lone.npz"))
    handed = fit(make_data(), **QUICK)
    assert not handed.trained_on("coloured-digits"), "the default of a setting that nobody gave"


@pytest.mark.parametrize("kept", [True, False])
def test_a_run_in_hand_predicts_the_images_that_it_held_out(at: Path, kept: bool) -> None:
    data = make_data(200)
    np.savez(at / "lone.npz", x_train=np.asarray(data.train.images), y_train=np.asarray(data.train.labels))
    run = fit("lone.npz", out=at / "run" if kept else None, data_seed=3, **QUICK)
    held_out = run.data.splits["test"]
    assert held_out is not None
    found = holdfast.predict(run, "lone.npz", split="test", device="cpu", workers=0)
    assert list(found.paths) == [held_out.describe(i) for i in range(len(held_out))]
