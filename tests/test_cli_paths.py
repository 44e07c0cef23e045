"""Paths that cannot be used: every command names the path and the reason, and exits with 2."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from holdfast.cli import main
from tests.data.pictures import write_class_folder

LONG = "x" * 300
QUICK = ["--epochs", "1", "--device", "cpu", "--quiet"]

READ = [
    ["train", "--data", "PATH", *QUICK],
    ["train", "--config", "PATH", *QUICK],
    ["train", "--data", "digits", "--weights", "PATH", *QUICK],
    ["train", "--data", "mnist", "--root", "PATH", *QUICK],
    ["compare", "--data", "PATH", *QUICK],
    ["audit", "PATH", "--data", "digits"],
    ["audit", "timm:resnet18", "--data", "PATH"],
    ["audit", "--predictions", "PATH"],
    ["report", "PATH"],
    ["data", "check", "PATH"],
    ["data", "make", "coloured", "--data", "PATH", "--out", "made.npz"],
    ["detect", "fit", "--data", "PATH", "--out", "detector"],
    ["detect", "score", "PATH", "--data", "digits", "--out", "scores.csv"],
    ["detect", "evaluate", "PATH", "--normal", "digits"],
    ["predict", "PATH", "--data", "digits", "--out", "predictions.csv"],
    ["describe", "PATH", "--out", "map"],
    ["shortcuts", "PATH"],
    ["shortcuts", "--data", "PATH"],
]
WRITTEN = [
    ["train", "--data", "digits", *QUICK, "--out", "PATH"],
    ["train", "--data", "digits", *QUICK, "--resume", "--out", "PATH"],
    ["compare", "--data", "digits", *QUICK, "--out", "PATH"],
    ["demo", "--quiet", "--out", "PATH"],
    ["detect", "fit", "--data", "digits", "--out", "PATH"],
    ["shortcuts", "--data", "digits", "--out", "PATH"],
    ["data", "make", "coloured", "--data", "digits", "--out", "PATH/made.npz"],
]


def lock(monkeypatch: pytest.MonkeyPatch, path: Path) -> None:
    """What a folder without permissions does to anyone but root, as whom tests may run."""
    real = os.stat

    def refused(file: Any, *args: Any, **kwargs: Any) -> os.stat_result:
        if str(file).startswith(str(path)):
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(file))
        return real(file, *args, **kwargs)

    monkeypatch.setattr(os, "stat", refused)


@pytest.mark.parametrize("words", [*READ, *WRITTEN], ids=" ".join)
@pytest.mark.parametrize(("kind", "reason"), [("long", "File name too long"), ("locked", "Permission denied")])
def test_a_path_that_cannot_be_used_is_named_with_the_reason(
    words: list[str],
    kind: str,
    reason: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("HOLDFAST_ROOT", raising=False)
    bad = LONG if kind == "long" else "locked/inside"
    if kind == "locked" and "--config" in words:
        pytest.skip("opened without a look")
    lock(monkeypatch, Path("locked"))
    assert main([word.replace("PATH", bad) for word in words]) == 2
    said = "".join(capsys.readouterr())
    assert reason in said
    assert bad in said
    assert "[Errno" not in said


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("photos", ["train", "--data", "photos", *QUICK]),
        ("set.npz", ["train", "--data", "set.npz", *QUICK]),
        ("w.safetensors", ["train", "--data", "digits", "--weights", "w.safetensors", *QUICK]),
        ("w.pth", ["audit", "w.pth", "--data", "digits", "--model", "convnet"]),
        ("net.onnx", ["audit", "net.onnx", "--data", "digits"]),
    ],
)
def test_what_may_not_be_read_is_called_neither_missing_nor_damaged(
    name: str,
    words: list[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    if "." in name:
        Path(name).write_bytes(b"secret")
    else:
        Path(name).mkdir()
    real = os.access
    monkeypatch.setattr(os, "access", lambda path, mode, **more: str(path) != name and real(path, mode, **more))
    assert main(words) == 2
    assert f"cannot read {name}: Permission denied; correct the path" in capsys.readouterr().err


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no device that is always full")
def test_a_full_disk_behind_the_output_is_said() -> None:
    with open("/dev/full", "w") as full:
        command = [sys.executable, "-m", "holdfast", "list", "data"]
        done = subprocess.run(command, stdout=full, stderr=subprocess.PIPE, text=True)
    assert done.returncode == 2
    assert done.stderr == "error: cannot use the output: No space left on device\n"


EMOJI = ["--data", "emoji", "--device", "cpu"]
FOREIGN = [
    ["train", *EMOJI, "--epochs", "1", "--quiet", "--out", "OUT"],
    ["train", *EMOJI, "--epochs", "1", "--quiet", "--overwrite", "--out", "OUT"],
    ["train", *EMOJI, "--epochs", "1", "--quiet", "--resume", "--out", "OUT"],
    ["compare", *EMOJI, "--epochs", "1", "--seeds", "1", "--quiet", "--out", "OUT"],
    ["audit", "run", *EMOJI, "--checks", "accuracy", "--out", "OUT"],
    ["repair", "run", *EMOJI, "--out", "OUT"],
    ["describe", *EMOJI[1:], "--epochs", "1", "--out", "OUT"],
    ["shortcuts", *EMOJI, "--epochs", "1", "--out", "OUT"],
    ["data", "check", "emoji", "--out", "OUT"],
    ["detect", "fit", *EMOJI, "--epochs", "1", "--out", "OUT"],
]


@pytest.fixture
def emoji(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder of images by class, a run, and a folder of notes, in the working directory."""
    monkeypatch.chdir(tmp_path)
    for seed, name in enumerate(("happy", "sad")):
        write_class_folder(tmp_path / "emoji" / name, 30, seed=seed, side=8)
    (tmp_path / "notes").mkdir()
    (tmp_path / "notes" / "plan.md").write_text("mine")
    assert main(["train", *EMOJI, "--epochs", "1", "--quiet", "--out", "run"]) == 0
    return tmp_path


def test_no_command_writes_into_the_data_or_among_other_files(emoji: Path, capsys: pytest.CaptureFixture[str]) -> None:
    before = sorted(emoji.rglob("*"))
    for out, said in {
        "emoji": "emoji is the folder of the data",
        "emoji/made": "emoji/made lies in the folder of the data",
        "notes": "notes holds other files (plan.md)",
    }.items():
        for words in FOREIGN:
            capsys.readouterr()
            assert main([out if word == "OUT" else word for word in words]) == 2, words
            error = capsys.readouterr().err
            assert said in error, words
            assert "--out" in error, words
            assert sorted(emoji.rglob("*")) == before, words
