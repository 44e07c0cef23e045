"""skip_unreadable: a bad file stops the work without it; with it the file is left out, counted, and has a row."""

from __future__ import annotations

import csv
from pathlib import Path
from typing import Any

import pytest

import holdfast
from holdfast.cli import main
from holdfast.data import load
from holdfast.data.usable_data import SKIPPED
from holdfast.errors import HoldfastError
from tests.data.pictures import noise, truncated_jpeg, write, write_class_folder

BAD = ("b.jpg", "d.png")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Twelve readable images of two classes, two in test; a truncated and an empty file among the training ones."""
    home = tmp_path / "data"
    for i in range(10):
        write(home / f"train/{'ant' if i % 2 else 'bee'}/{i}.png", noise(8, 8, seed=i))
    for i in range(2):
        write(home / f"test/{'ant' if i % 2 else 'bee'}/{i}.png", noise(8, 8, seed=20 + i))
    truncated_jpeg(home / "train/ant/2b.jpg")
    (home / "test/bee/1d.png").touch()
    return home


@pytest.fixture
def flat(tmp_path: Path) -> Path:
    home = tmp_path / "incoming"
    for name in "ace":
        write(home / f"{name}.png", noise(8, 8, seed=ord(name)))
    truncated_jpeg(home / "b.jpg")
    (home / "d.png").touch()
    return home


def rows(path: Path) -> list[dict[str, str]]:
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


def test_load_leaves_them_out_and_lists_them(folder: Path) -> None:
    data = load(folder, skip_unreadable=True)
    assert data.test is not None
    assert (len(data.train), len(data.test)) == (10, 2)
    assert [(Path(bad.path).name, bad.split) for bad in data.unreadable] == [("2b.jpg", "train"), ("1d.png", "test")]
    (note,) = [note for note in data.notes if note.code == SKIPPED]
    assert note.level == "warning"
    assert "2 of 14 image files cannot be read and are skipped" in note.text


def test_nothing_changes_where_every_file_is_readable(folder: Path) -> None:
    (folder / "train/ant/2b.jpg").unlink()
    (folder / "test/bee/1d.png").unlink()
    data = load(folder, skip_unreadable=True)
    assert data.unreadable == ()
    assert data.notes == load(folder).notes


def test_a_class_that_loses_all_its_images_is_refused(folder: Path) -> None:
    for path in (folder / "train/ant").glob("*.png"):
        path.write_bytes(b"")
    with pytest.raises(HoldfastError, match="class 'ant' .* has no training sample"):
        load(folder, skip_unreadable=True)


def test_a_training_stops_by_default_and_skips_when_told_so(folder: Path, tmp_path: Path) -> None:
    how: dict[str, Any] = {"epochs": 1, "device": "cpu", "workers": 0, "image_size": 8, "progress": False}
    with pytest.raises(HoldfastError, match="cannot read image"):
        holdfast.fit(folder, out=tmp_path / "stopped", **how)
    made = holdfast.fit(folder, out=tmp_path / "run", skip_unreadable=True, **how)
    assert len(made.data.train) == 10
    listed = rows(tmp_path / "run/unreadable.csv")
    assert [(Path(row["image"]).name, row["split"]) for row in listed] == [("2b.jpg", "train"), ("1d.png", "test")]
    assert "truncated" in listed[0]["reason"]
    assert "skip_unreadable: true" in (tmp_path / "run/run.yaml").read_text()

    # an audit loads the data as the run did, and says what it left out
    audit = tmp_path / "audit"
    words = ["audit", str(tmp_path / "run"), "--data", str(folder), "--checks", "accuracy", "--out", str(audit)]
    assert main([*words, "--device", "cpu", "--workers", "0"]) == 0
    assert len(rows(audit / "samples.csv")) == 2
    assert len(rows(audit / "unreadable.csv")) == 2
    assert "cannot be read and are skipped" in (audit / "findings.json").read_text()


@pytest.mark.parametrize("trained", [True, False], ids=["run", "python"])
def test_an_audit_stops_by_default_and_skips_when_told_so(
    trained: bool, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Whatever the model was trained on, and whether we know of it."""
    if trained:
        for kind in ("ant", "bee"):
            write_class_folder(tmp_path / "whole" / kind, 8, side=8)
        model = str(tmp_path / "run")
        holdfast.fit(tmp_path / "whole", out=model, epochs=1, device="cpu", workers=0, image_size=8, progress=False)
    else:
        (tmp_path / "mine.py").write_text(
            "import torch\ndef dark(): return lambda x: x.mean((1, 2, 3))[:, None] * -torch.ones(2)\n"
        )
        monkeypatch.chdir(tmp_path)
        monkeypatch.syspath_prepend(tmp_path)
        model = "python:mine:dark"
    words = ["audit", model, "--data", str(folder), "--checks", "accuracy", "--device", "cpu", "--workers", "0"]
    words += ["--class-map", "order"]
    assert main([*words, "--out", str(tmp_path / "stopped")]) == 2
    assert "cannot read image" in capsys.readouterr().err
    assert main([*words, "--out", str(tmp_path / "audit"), "--skip-unreadable"]) == 0
    assert len(rows(tmp_path / "audit/samples.csv")) == 2
    assert "1d.png" in (tmp_path / "audit/unreadable.csv").read_text()


def test_predictions_and_scores_have_rows_that_say_so(folder: Path, flat: Path, tmp_path: Path) -> None:
    how: dict[str, Any] = {"epochs": 1, "device": "cpu", "workers": 0, "image_size": 8, "progress": False}
    holdfast.fit(folder, out=tmp_path / "run", skip_unreadable=True, **how)
    out = tmp_path / "predictions.csv"
    words = [
        "predict",
        str(tmp_path / "run"),
        "--data",
        str(flat),
        "--out",
        str(out),
        "--device",
        "cpu",
        "--workers",
        "0",
    ]
    assert main(words) == 2
    assert not out.exists()
    assert main([*words, "--skip-unreadable"]) == 0
    listed = rows(out)
    assert [Path(row["path"]).name for row in listed] == ["a.png", "b.jpg", "c.png", "d.png", "e.png"]
    for row in listed:
        bad = Path(next(iter(row.values()))).name in BAD
        assert row["reason"].startswith("unreadable: ") == bad
        assert (row["confidence"] == "") == bad

    normal = tmp_path / "normal"
    write_class_folder(normal, 60, side=8)
    fitted = holdfast.detect.fit(
        str(normal),
        scores=("energy",),
        false_alarm_rate=0.3,
        run=str(tmp_path / "run"),
        out=str(tmp_path / "detector"),
        device="cpu",
    )
    notes: list[str] = []
    found = holdfast.detect.score(
        fitted, flat, out=tmp_path / "s.csv", skip_unreadable=True, device="cpu", workers=0, note=notes.append
    )
    assert len(found) == 3
    assert [Path(bad.path).name for bad in found.unreadable] == list(BAD)
    assert [row["reason"].startswith("unreadable: ") for row in rows(tmp_path / "s.csv")] == [False, True] * 2 + [False]
    assert any("2 of 5 image files cannot be read" in note for note in notes)


def test_nothing_readable_is_an_error(tmp_path: Path, flat: Path) -> None:
    from holdfast.data.unlabelled_images import open_unlabelled

    for path in flat.iterdir():
        path.write_bytes(b"")
    with pytest.raises(HoldfastError, match="none of 5 files can be read"):
        open_unlabelled(flat, skipped=lambda bad: None)
