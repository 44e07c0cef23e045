"""``holdfast audit RUN`` knows the data: that of the run, as run.yaml says."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import holdfast
from holdfast.cli import main
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
