"""Models with more classes, without gradients, and predictions without a model."""

from __future__ import annotations

import csv
import io
import json
from pathlib import Path

import pytest
import torch

from holdfast.cli import main
from holdfast.data import load
from holdfast.reports import read_findings
from tests.audits.nearest import MODEL, QUICK, answers
from tests.data.pictures import noise, write, write_class_folder


def test_predictions_alone_are_enough_for_accuracy_and_groups(folder: Path) -> None:
    predicted, labels = answers()
    file = io.StringIO()
    writer = csv.writer(file)
    writer.writerow(["label", "prediction", "site"])
    for i, (p, y) in enumerate(zip(predicted.tolist(), labels.tolist(), strict=True)):
        writer.writerow([y, p, "ab"[i % 2]])
    Path("p.csv").write_text(file.getvalue())
    assert main(["audit", "--predictions", "p.csv", "--group", "site", "--device", "cpu", "--quiet", "--out", "o"]) == 0
    read = read_findings("o/findings.json")
    value = {(f.check, f.name, *f.where.values()): f.value for f in read.findings}
    assert value["accuracy", "accuracy"] == pytest.approx((predicted == labels).double().mean().item())
    assert value["groups", "group_accuracy", "site", "a"] == pytest.approx(
        (predicted == labels)[::2].double().mean().item()
    )
    assert value["accuracy", "ece"] is None  # there are no scores to be calibrated
    assert all(not f.evidence.get("pictures") for f in read.findings)
    states = {r.name: r.state for r in read.checks}
    assert {name for name, state in states.items() if state == "measured"} == {"accuracy", "groups"}
    assert set(states.values()) == {"measured", "not applicable"}


def test_a_class_map_speaks_for_predictions_too(folder: Path) -> None:
    predicted, labels = answers()
    Path("p.csv").write_text("\n".join(["prediction", *(f"digit {p}" for p in predicted.tolist())]))
    Path("map.json").write_text(json.dumps({str(i): f"digit {i}" for i in range(10)}))
    words = ["audit", "--predictions", "p.csv", "--data", "coloured-digits", "--checks", "accuracy", "--device", "cpu"]
    assert main([*words, "--out", "a"]) == 2
    assert main([*words, "--class-map", "map.json", "--out", "b"]) == 0
    (found,) = [f for f in read_findings("b/findings.json").findings if f.name == "accuracy" and not f.where]
    assert found.value == pytest.approx((predicted == labels).double().mean().item())


def test_a_table_of_samples_is_a_file_of_predictions(folder: Path) -> None:
    """What one audit writes, another reads: with data by path, and without."""
    assert main(["audit", MODEL, *QUICK, "--checks", "accuracy", "--quiet", "--out", "first"]) == 0
    first = {f.name: f.value for f in read_findings("first/findings.json").findings if not f.where}
    for words in ([], ["--data", "coloured-digits"]):
        again = [
            "audit",
            "--predictions",
            "first/samples.csv",
            *words,
            "--checks",
            "accuracy",
            "--device",
            "cpu",
            "--quiet",
        ]
        assert main([*again, "--out", f"again{len(words)}"]) == 0
        second = {f.name: f.value for f in read_findings(f"again{len(words)}/findings.json").findings if not f.where}
        assert second["accuracy"] == first["accuracy"]


def test_what_predict_writes_is_a_file_of_predictions(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A class may be called as its other columns are; with probabilities also calibration is that of the run."""
    for part in ("train", "test"):
        for number, name in enumerate(("ood", "reason")):
            write_class_folder(folder / "photos" / part / name, 10, seed=number + len(part))
    common = ["--device", "cpu", "--workers", "0"]
    assert main(["train", "--data", "photos", "--epochs", "1", *common, "--quiet", "--out", "run"]) == 0
    own = {f.name: f.value for f in read_findings("run/findings.json").findings if not f.where}
    assert 0 <= own["accuracy"] <= 1
    assert main(["predict", "run", "--data", "photos/test", *common, "--out", "p.csv"]) == 0
    words = ["audit", "--predictions", "p.csv", "--checks", "accuracy", *common]
    assert main([*words, "--data", "photos", "--out", "audited"]) == 0
    found = {f.name: f.value for f in read_findings("audited/findings.json").findings if not f.where}
    assert found["accuracy"] == own["accuracy"]
    assert found["nll"] is None  # one confidence per image is not a score per class
    assert main(["predict", "run", "--data", "photos/test", *common, "--probabilities", "--out", "p.csv"]) == 0
    assert main([*words, "--data", "photos", "--out", "scored"]) == 0
    scored = {f.name: f.value for f in read_findings("scored/findings.json").findings if not f.where}
    assert {name: scored[name] for name in ("accuracy", "nll", "ece")} == pytest.approx(
        {name: own[name] for name in ("accuracy", "nll", "ece")}, rel=1e-5
    )
    assert "is not the class with the highest score" not in capsys.readouterr().err
    capsys.readouterr()
    assert main([*words, "--out", "alone"]) == 2
    told = " ".join(capsys.readouterr().err.split())
    assert "p.csv has no column 'label' with the truth (a file of 'holdfast predict' has answers only)" in told
    assert "give the data it belongs to with --data" in told


def test_a_model_that_knows_more_classes_has_both_readings(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["audit", "python:nearest:wide", *QUICK, "--checks", "accuracy", "--out", "out"]) == 0
    assert "two readings" in capsys.readouterr().err
    found = {
        tuple(f.where.items()): f.value for f in read_findings("out/findings.json").findings if f.name == "accuracy"
    }
    predicted, labels = answers()
    right = predicted == labels
    assert found[()] == pytest.approx(right.double().mean().item())  # the classes of the data alone
    data = load("coloured-digits")
    assert data.test is not None
    x, t = (s.read(torch.arange(len(s))).double().flatten(1) / 255 for s in (data.train, data.test))
    means = torch.stack([x[data.train.labels == c].mean(0) for c in range(10)])
    scores = 2 * t @ means.T - means.square().sum(1)
    lost = scores[:, 0] + 1 > scores.max(1).values  # "wolf" wins, and no digit is one
    assert bool((lost & right).any())
    assert found[("reading", "all"),] == pytest.approx((right & ~lost).double().mean().item())


def test_checks_that_need_gradients_say_so_where_there_are_none(folder: Path) -> None:
    words = ["audit", "python:nearest:Blind", *QUICK, "--checks", "attacks", "saliency", "curvature", "--quiet"]
    assert main([*words, "--out", "out"]) == 0
    states = {r.name: (r.state, r.reason) for r in read_findings("out/findings.json").checks}
    for name in ("attacks", "saliency", "curvature"):
        assert states[name][0] == "not applicable"
        assert "no gradients reach the images" in states[name][1]


def test_the_size_images_are_read_at_is_said_once(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A run's own size, and not the one that files of different sizes would have been brought to without it."""
    for i in range(12):
        side = 8 + 4 * (i % 3)
        write(Path("photos", ("train", "test")[i // 8], "ab"[i % 2], f"{i}.png"), noise(side, side, seed=i))
    train = [
        "train",
        "--data",
        "photos",
        "--image-size",
        "10",
        "--model",
        "convnet",
        "--epochs",
        "1",
        "--device",
        "cpu",
    ]
    assert main([*train, "--workers", "0", "--quiet", "--out", "run"]) == 0
    capsys.readouterr()
    audit = ["audit", "run", "--data", "photos", "--device", "cpu", "--workers", "0", "--checks", "accuracy"]
    assert main([*audit, "--out", "out"]) == 0
    said = "".join(capsys.readouterr())
    assert said.count("images are read at 10x10") == 1
    assert "224" not in said
    assert read_findings("out/findings.json").data["shape"] == [3, 10, 10]
    assert main([*audit, "--image-size", "12", "--out", "other"]) == 0
    assert "images are read at" not in "".join(capsys.readouterr())
