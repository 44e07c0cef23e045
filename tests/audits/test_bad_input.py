"""What cannot be audited is refused with a sentence, and leaves nothing behind."""

from __future__ import annotations

import errno
import json
import os
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from holdfast.audits.run_audit import audit
from holdfast.audits.subject import draw
from holdfast.cli import main
from holdfast.errors import HoldfastError
from tests.audits.nearest import MODEL, QUICK

LONG = "x" * 300
"""Longer than a file system lets a name be."""


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ([MODEL, "--data", "coloured-digits", "--fail-under", "cleen=0.9"], "unknown gate 'cleen'"),
        ([MODEL, "--data", "coloured-digits", "--max-drop", "accuracy=0.1"], "name it with --against"),
        (
            [MODEL, "--data", "coloured-digits", "--checks", "acuracy"],
            "unknown check 'acuracy'; did you mean 'accuracy'",
        ),
        ([MODEL, "--data", "coloured-digits", "--budget", "soon"], "such as 90s, 5m or 1h, got 'soon'"),
        ([MODEL, "--data", "colored-digit"], "did you mean 'coloured-digits'"),
        ([MODEL], "no data was given"),
        (["runs/nope", "--checks", "accuracy"], "model runs/nope does not exist (there is no folder runs)"),
        (["--data", "digits"], "give either MODEL or --predictions FILE"),
        ([MODEL, "--predictions", "x.csv"], "not both"),
        (["python:nearest:nothing", *QUICK], "nothing"),
        ([MODEL, *QUICK, "--class-map", "none.json"], "cannot read class map none.json"),
        (
            [MODEL, *QUICK, "--out", "nearest.py"],
            "nearest.py is not a folder; choose another with --out",
        ),
        ([MODEL, *QUICK, "--group", "group", "--group", "column"], "cannot be called 'column'"),
        (
            ["--predictions", "x.csv", "--group", "measure"],
            "'measure', as findings use that word for parts of their own; rename",
        ),
        (["--predictions", "none.csv"], "none.csv"),
        (["--predictions", LONG], "File name too long"),
        ([LONG, *QUICK], "File name too long"),
        ([f"{LONG}/run", *QUICK], "File name too long"),
        ([MODEL, *QUICK, "--out", LONG], "File name too long; choose another folder with --out"),
        ([MODEL, *QUICK, "--out", ""], "--out is empty"),
        ([MODEL, *QUICK, "--batch-size", "0"], "batch_size must be a whole number >= 1, got 0"),
        ([MODEL, *QUICK, "--batch-size", "-4"], "batch_size must be a whole number >= 1, got -4"),
        ([MODEL, "--data", "digits", "--workers", "-1"], "workers must be a whole number >= 0, got -1"),
        ([MODEL, *QUICK, "--seed", str(2**70)], f"seed must be in 0..2**63-1, got {2**70}"),
        ([MODEL, *QUICK, "--seed", "-1"], "seed must be a whole number >= 0, got -1"),
        (["--predictions", "x.csv", "--preprocessing", "half"], "--preprocessing half is for a model that is asked"),
        (["--predictions", "x.csv", "--class-map", "none.json"], "cannot read class map none.json"),
    ],
)
def test_bad_input_exits_with_2_and_leaves_nothing(
    folder: Path, words: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["audit", *words]) == 2
    err = capsys.readouterr().err
    assert message in err
    assert "Traceback" not in err
    assert {p.name for p in folder.iterdir()} <= {"nearest.py", "__pycache__"}


def test_a_run_that_is_not_there_is_said_before_its_missing_data(folder: Path) -> None:
    with pytest.raises(HoldfastError, match="model runs/nope does not exist"):
        audit("runs/nope", checks=["accuracy"])
    with pytest.raises(HoldfastError, match="no data was given; name it with --data"):
        audit(MODEL, checks=["accuracy"])


@pytest.mark.parametrize(
    "gate", [["--fail-under", "cleen=0.9"], ["--max-drop", "accuracy=0.1"], ["--fail-under", "accuracy"]]
)
def test_a_gate_that_cannot_be_is_refused_before_anything_runs(folder: Path, gate: list[str]) -> None:
    assert main(["audit", MODEL, *QUICK, *gate]) == 2
    assert "nearest" not in sys.modules


RARE = """
import torch
from torch import nn


class Rare(nn.Module):
    def __init__(self, wrong):
        super().__init__()
        self.wrong = wrong

    def forward(self, x):
        z = x.mean((2, 3))[:, :1] * torch.linspace(-1, 1, 10)
        return torch.where((x[:, :1, 0, 0] == 1 / 255), torch.full_like(z, self.wrong), z)


def make():
    return Rare(float("nan"))
"""


def test_nan_beyond_the_sample_is_bad_input_too(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """One image of 600, which the 512 that decide do not hold."""
    images = np.zeros((600, 4, 4), np.uint8)
    outside = next(i for i in range(600) if i not in draw(600, 512, 0, "alignment").tolist())
    images[outside, 0, 0] = 1
    labels = np.arange(600) % 10
    np.savez("d.npz", x_train=images[:10], y_train=labels[:10], x_test=images, y_test=labels)
    Path("rare.py").write_text(RARE)
    assert main(["audit", "python:rare:make", "--data", "d.npz", "--device", "cpu", "--out", "out"]) == 2
    assert f"NaN or infinity for 1 of 600 images, the first at position {outside} of the test set" in (
        capsys.readouterr().err
    )
    assert not Path("out").exists()


def test_a_target_that_cannot_be_written_is_refused_before_the_model_is_opened(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    Path("locked").mkdir()
    Path("locked").chmod(0o555)
    locked = "locked/out" if os.geteuid() else "/proc/holdfast-audit"  # permissions do not stop root, procfs does
    assert main(["audit", MODEL, *QUICK, "--out", locked]) == 2
    said = capsys.readouterr().err
    assert f"cannot write to {locked}" in said
    assert "choose another folder with --out" in said
    assert "nearest" not in sys.modules


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ([MODEL, *QUICK, "--out", "locked/out"], "cannot write to locked/out: Permission denied"),
        (["locked/run", *QUICK], "cannot read locked/run: Permission denied"),
        (["locked", *QUICK], "cannot read locked"),
        ([MODEL, "--data", "locked"], "cannot read locked/"),
    ],
)
def test_a_folder_that_may_not_be_searched_is_bad_input(
    folder: Path,
    words: list[str],
    message: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    Path("locked/cat").mkdir(parents=True)
    real = os.stat

    def searched(path: Any, *args: Any, **kwargs: Any) -> os.stat_result:
        if str(path).startswith("locked/"):
            raise PermissionError(errno.EACCES, "Permission denied", str(path))
        return real(path, *args, **kwargs)

    monkeypatch.setattr(os, "stat", searched)  # permissions do not stop root
    assert main(["audit", *words]) == 2
    assert message in capsys.readouterr().err


FICKLE = """
import torch


class Fickle(torch.nn.Module):
    def __init__(self, most):
        super().__init__()
        self.most = most

    def forward(self, x):
        print("I was asked")
        if len(x) > self.most:
            raise ValueError("too many at once")
        return x.flatten(1)[:, :10]


def small():
    return Fickle(4)


def large():
    return Fickle(64)
"""


@pytest.mark.parametrize(("maker", "size"), [("small", 64), ("large", 256)])
def test_a_model_that_fails_on_larger_batches_is_bad_input(
    folder: Path, maker: str, size: int, capsys: pytest.CaptureFixture[str]
) -> None:
    """While it is aligned, and after."""
    Path("fickle.py").write_text(FICKLE)
    words = ["audit", f"python:fickle:{maker}", *QUICK, "--checks", "accuracy", "--class-map", "order", "--out", "out"]
    assert main(words) == 2
    said = capsys.readouterr().err
    assert f"fails on a batch of up to {size} images: ValueError: too many at once; give a --batch-size" in said
    assert main([*words, "--batch-size", "4"]) == 0
    sys.modules.pop("fickle")


def test_what_a_model_prints_is_no_result(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    Path("fickle.py").write_text(FICKLE)
    words = [
        "audit",
        "python:fickle:large",
        *QUICK,
        "--checks",
        "accuracy",
        "--class-map",
        "order",
        "--quiet",
        "--json",
    ]
    assert main([*words, "--batch-size", "64", "--out", "out"]) == 0
    out, err = capsys.readouterr()
    assert json.loads(out)["format"] == "holdfast-findings"
    assert "I was asked" in err
    sys.modules.pop("fickle")


def test_a_training_run_is_not_written_over(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    Path("run").mkdir()
    Path("run/run.yaml").write_text("epochs: 1\n")
    assert main(["audit", MODEL, *QUICK, "--out", "run"]) == 2
    assert "holds a training run" in capsys.readouterr().err
    assert [p.name for p in Path("run").iterdir()] == ["run.yaml"]
