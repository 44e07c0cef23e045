"""A run is measured on the images that it held out itself, and on no other."""

from __future__ import annotations

import csv
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

import holdfast
from holdfast.cli import main
from holdfast.data import load
from holdfast.data.splits import Split
from holdfast.reports import read_findings
from tests.audits.nearest import MODEL, table

CHEAP = ["--checks", "accuracy", "--device", "cpu", "--workers", "0", "--quiet"]


def train(out: str, data: str, *words: str) -> None:
    given = ["--model", "convnet", "--epochs", "1", "--device", "cpu", "--workers", "0", "--quiet", "--out", out]
    assert main(["train", "--data", data, *given, *words]) == 0


def ids(split: Split | None) -> list[str]:
    assert split is not None
    return [split.describe(i) for i in range(len(split))]


@pytest.fixture
def flat(folder: Path) -> Path:
    """An .npz file without a test part."""
    images = np.random.default_rng(0).integers(0, 256, (60, 8, 8, 3), np.uint8)
    np.savez("flat.npz", x_train=images, y_train=np.arange(60) % 2)
    return folder


def test_a_run_is_measured_on_what_it_held_out(flat: Path, capsys: pytest.CaptureFixture[str]) -> None:
    train("run", "flat.npz", "--data-seed", "5", "--val", "0.1")
    own, usual = load("flat.npz", data_seed=5, val=0.1), load("flat.npz")
    assert set(ids(usual.test)) & set(ids(own.train))
    for data in ("flat.npz", str(flat / "flat.npz")):
        assert main(["audit", "run", "--data", data, "--checks", "accuracy", "--device", "cpu", "--out", "out"]) == 0
        seen = {row["path"].rpartition("/")[2] for row in table(Path("out"))}
        assert seen == set(ids(own.test))
        about = read_findings("out/findings.json").data
        assert (about["data_seed"], about["val"], about["train"]) == (5, 0.1, len(own.train))
        assert "loaded as run was trained: data_seed 5, val 0.1" in capsys.readouterr().err


@pytest.mark.slow
def test_a_run_of_what_was_in_memory_does_not_say_how_to_load(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    holdfast.fit(load("coloured-digits", conflict=0.2), out="run", epochs=1, device="cpu")
    assert (
        main(["audit", "run", "--data", "coloured-digits", "--checks", "accuracy", "--device", "cpu", "--out", "out"])
        == 0
    )
    assert "as run was trained" not in capsys.readouterr().err


@pytest.mark.slow
def test_another_model_is_told_and_beside_a_run_takes_its_split(folder: Path) -> None:
    def seen(*words: str) -> list[str]:
        assert main(["audit", *words, "--data", "coloured-digits", *CHEAP, "--out", "out"]) == 0
        return [row["path"] for row in table(next(Path("out").rglob("samples.csv")).parent)]

    assert seen(MODEL, "--data-seed", "3") == ids(load("coloured-digits", data_seed=3).test)
    train("run", "coloured-digits", "--data-seed", "5")
    assert main(["audit", MODEL, "--data", "coloured-digits", "--against", "run", *CHEAP, "--out", "two"]) == 0
    for name in ("python-nearest-make", "run"):
        rows = table(Path("two") / name)
        assert [row["path"] for row in rows] == ids(load("coloured-digits", data_seed=5).test)


def test_runs_with_other_test_images_are_not_compared(flat: Path, capsys: pytest.CaptureFixture[str]) -> None:
    train("a", "flat.npz", "--data-seed", "5")
    train("b", "flat.npz")
    assert main(["audit", "a", "--against", "b", "--data", "flat.npz", *CHEAP, "--out", "out"]) == 2
    said = capsys.readouterr().err
    assert "a was trained with data_seed 5 and b with data_seed 0" in said
    assert "audit them one by one" in said
    assert main(["audit", "a", "--data-seed", "0", "--data", "flat.npz", *CHEAP, "--out", "out"]) == 2
    assert "a was trained with data_seed 5: with --data-seed 0 it would be measured on" in capsys.readouterr().err
    assert not Path("out").exists()
    with np.load("flat.npz") as own:
        np.savez("other.npz", **own)
    words = ["audit", "a", "--against", "b", "--data", "other.npz", *CHEAP, "--out", "out"]
    assert main(words) == 2
    assert "on data that neither was trained on, give --data-seed" in capsys.readouterr().err
    assert main([*words, "--data-seed", "7"]) == 0
    assert [row["path"] for row in table(Path("out/a"))] == ids(load("other.npz", data_seed=7).test)


def test_runs_with_the_same_test_images_are_compared_whatever_their_seeds(folder: Path) -> None:
    images = np.random.default_rng(0).integers(0, 256, (60, 8, 8, 3), np.uint8)
    labels = np.arange(60) % 2
    np.savez("d.npz", x_train=images[:40], y_train=labels[:40], x_test=images[40:], y_test=labels[40:])
    train("a", "d.npz", "--data-seed", "5")
    train("b", "d.npz", "--val", "0.2")
    assert main(["audit", "a", "--against", "b", "--data", "d.npz", *CHEAP, "--out", "out"]) == 0
    found = read_findings("out/a/findings.json").findings
    assert next(f for f in found if f.check == "against").n == 20


def test_labels_in_file_names_come_from_the_run_or_from_flags(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    Path("faces").mkdir()
    rng = np.random.default_rng(0)
    for i in range(60):
        pixels = rng.integers(0, 256, (8, 8, 3), np.uint8)
        Image.fromarray(pixels).save(f"faces/{20 + i}_{i % 2}_{i}.png")
    rule = ["--names", "{age}_{sex}_", "--label", "age>=50"]
    train("run", "faces", *rule, "--group", "sex")
    own = load("faces", names="{age}_{sex}_", label="age>=50", group="sex")
    assert main(["audit", "run", "--data", "faces", "--checks", "groups", *CHEAP[2:], "--out", "out"]) == 0
    read = read_findings("out/findings.json")
    assert read.data["classes"] == list(own.classes) == ["age<50", "age>=50"]
    assert {f.where["group"] for f in read.findings if "group" in f.where} == {"0", "1"}
    Path("tiny.py").write_text(
        "import torch\n\n\ndef make():\n    return torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(192, 2))\n"
    )
    words = ["audit", "python:tiny:make", "--data", "faces", "--class-map", "order", *CHEAP, "--out"]
    assert main([*words, "told", *rule]) == 0
    assert sorted({row["label"] for row in table(Path("told"))}) == ["age<50", "age>=50"]
    assert main([*words, "half", "--names", "{age}_{sex}_"]) == 2
    assert "give label" in capsys.readouterr().err


def test_python_takes_the_seed_too(flat: Path) -> None:
    torch.manual_seed(1)  # outputs of a random model may all lie in [0, 1], which is a warning
    model = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(192, 2))
    by_seed = [holdfast.audit(model, "flat.npz", checks=["accuracy"], device="cpu", data_seed=seed) for seed in (0, 5)]
    for seed, found in zip((0, 5), by_seed, strict=True):
        test = load("flat.npz", data_seed=seed).test
        assert test is not None
        with torch.no_grad():
            right = model(test.read(torch.arange(len(test))).float() / 255).argmax(1) == test.labels
        assert next(f.value for f in found if f.name == "accuracy") == pytest.approx(right.double().mean().item())
    with pytest.raises(holdfast.HoldfastError, match="data_seed 5: not for a set in memory"):
        holdfast.audit(model, load("flat.npz"), checks=["accuracy"], device="cpu", data_seed=5)


def test_a_run_is_measured_at_the_size_it_was_trained_at_as_training_brought_images_to_it(folder: Path) -> None:
    """Training cuts the centre out of images of other proportions, and so does predict."""
    x = np.random.default_rng(0).integers(0, 256, (60, 14, 8), np.uint8)
    np.savez("tall.npz", x_train=x, y_train=np.arange(60) % 3, x_test=x[:30], y_test=np.arange(30) % 3)
    common = ["--device", "cpu", "--quiet"]
    assert main(["train", "--data", "tall.npz", "--image-size", "6", "--epochs", "1", "--out", "run", *common]) == 0
    assert main(["audit", "run", "--data", "tall.npz", "--checks", "accuracy", "--out", "out", *common]) == 0
    assert main(["predict", "run", "--data", "tall.npz", "--out", "p.csv", "--device", "cpu"]) == 0
    trained, audited = (
        {f.name: f.value for f in read_findings(Path(folder, "findings.json")).findings if not f.where and f.n}
        for folder in ("run", "out")
    )
    for name in ("accuracy", "nll"):
        assert audited[name] == trained[name]
    with open("p.csv", newline="") as file:
        answers = [row["prediction"] for row in csv.DictReader(file)]
    assert np.mean([a == str(i % 3) for i, a in enumerate(answers)]) == pytest.approx(trained["accuracy"])


def test_predict_holds_out_what_its_run_held_out(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    x = np.random.default_rng(0).integers(0, 256, (60, 8, 8), np.uint8)
    np.savez("whole.npz", x_train=x, y_train=np.arange(60) % 3)
    common = ["--device", "cpu"]
    assert main(["train", "--data", "whole.npz", "--data-seed", "7", "--epochs", "1", "--out", "run", *common]) == 0
    Path("elsewhere").mkdir()
    monkeypatch.chdir("elsewhere")
    words = ["predict", "../run", "--data", "../whole.npz", "--split", "test", "--out", "p.csv", *common]
    assert main(words) == 0
    with open("p.csv", newline="") as file:
        seen = [Path(row["path"]).name for row in csv.DictReader(file)]
    held = load("../whole.npz", data_seed=7).test
    assert seen == [Path(held.describe(i)).name for i in range(len(held))]
    assert seen != [Path(d).name for d in ids(load("../whole.npz").test)]
