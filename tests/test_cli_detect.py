"""``holdfast detect``, ``describe`` and ``predict`` with what does not fit: each ends with 2 and says what to do."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from holdfast.cli import main
from holdfast.data import ArraySplit, load

TINY = ["--epochs", "1", "--encoder-epochs", "1", "--device", "cpu"]


@pytest.fixture(scope="module")
def detector(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A detector of digits, as quick as can be."""
    folder = tmp_path_factory.mktemp("detector") / "made"
    words = ["detect", "fit", "--data", "digits", "--out", str(folder), "--scores", "reconstruction"]
    assert main([*words, *TINY]) == 0
    return folder


def pictures(folder: Path, *, mode: str = "L", size: int = 16, count: int = 3, value: int | None = None) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    split = load("digits").test
    assert isinstance(split, ArraySplit)
    for i in range(count):
        image = Image.fromarray(split.images[i, 0].numpy()).resize((size, size)).convert(mode)
        (image if value is None else Image.new(mode, (size, size), value)).save(folder / f"{i}.png")
    return folder


def refused(words: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(words) == 2
    told = " ".join(capsys.readouterr().err.split())
    assert message in told
    assert "Traceback" not in told


def score(detector: Path, data: object, out: Path) -> list[str]:
    words = ["detect", "score", str(detector), "--data", str(data), "--out", str(out / "scores.csv")]
    return [*words, "--device", "cpu", "--workers", "0"]


def test_colour_to_a_grey_detector(detector: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    refused(score(detector, pictures(tmp_path / "p", mode="RGB"), tmp_path), "grey", capsys)
    assert not (tmp_path / "scores.csv").exists()


def test_arrays_of_another_size(detector: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    x = np.zeros((20, 8, 8), dtype=np.uint8)
    np.savez(tmp_path / "small.npz", x_train=x, y_train=np.arange(20) % 2)
    refused(score(detector, tmp_path / "small.npz", tmp_path), "for images of 16x16 pixels", capsys)


def test_files_of_another_size_are_brought_to_it(detector: Path, tmp_path: Path) -> None:
    assert main(score(detector, pictures(tmp_path / "p", size=40), tmp_path)) == 0
    assert len((tmp_path / "scores.csv").read_text().splitlines()) == 4


def test_constant_pictures_are_scored_but_teach_nothing(
    detector: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    flat = pictures(tmp_path / "flat", count=60, value=7)
    assert main(score(detector, flat, tmp_path)) == 0
    refused(["detect", "fit", "--data", str(flat), "--out", str(tmp_path / "d"), *TINY], "constant images?", capsys)
    assert not (tmp_path / "d").exists()


def test_nan(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    x = np.random.default_rng(0).random((50, 8, 8)).astype(np.float32)
    x[3, 2, 2] = np.nan
    np.savez(tmp_path / "nan.npz", x_train=x, y_train=np.arange(50) % 2)
    refused(["detect", "fit", "--data", str(tmp_path / "nan.npz"), "--out", str(tmp_path / "d"), *TINY], "NaN", capsys)


def test_fewer_pictures_than_features(tmp_path: Path) -> None:
    few = pictures(tmp_path / "few", count=60)
    words = ["detect", "fit", "--data", str(few), "--out", str(tmp_path / "d"), "--scores", "mahalanobis"]
    assert main([*words, "--false-alarm-rate", "0.2", *TINY]) == 0
    assert main(score(tmp_path / "d", few, tmp_path)) == 0
    assert "nan" not in (tmp_path / "scores.csv").read_text()


def test_one_class_is_no_class_to_compare(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    few = pictures(tmp_path / "one" / "only", count=60).parent
    words = ["detect", "fit", "--data", str(few), "--out", str(tmp_path / "d"), "--scores", "relative-mahalanobis"]
    refused([*words, *TINY], "two classes", capsys)


def test_empty_folders(detector: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    empty = tmp_path / "empty"
    empty.mkdir()
    refused(score(detector, empty, tmp_path), "holds no images", capsys)
    refused(["detect", "fit", "--data", str(empty), "--out", str(tmp_path / "d")], "holds no images", capsys)
    refused(["describe", str(empty), "--out", str(tmp_path / "m")], "holds no images", capsys)
    normal = pictures(tmp_path / "p")
    words = ["detect", "evaluate", str(detector), "--normal", str(normal), "--anomalous", str(empty)]
    refused([*words, "--device", "cpu"], "holds no images", capsys)


def test_a_threshold_of_too_little_data(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    few = pictures(tmp_path / "few", count=30)
    words = ["detect", "fit", "--data", str(few), "--out", str(tmp_path / "d"), *TINY]
    refused([*words, "--false-alarm-rate", "0.01"], "held-out", capsys)
    refused([*words, "--false-alarm-rate", "0"], "rate must be in", capsys)
    assert not (tmp_path / "d").exists()


def test_words_that_are_wrong(detector: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = str(tmp_path / "d")
    refused(["detect", "fit", "--data", "digits", "--out", out, "--scores", "elbow"], "did you mean 'elbo'", capsys)
    refused(["detect", "fit", "--data", "digits"], "where shall the detector go", capsys)
    refused(["detect", "evaluate", str(detector), "--normal", "digits"], "brings no anomalies of its own", capsys)
    words = ["detect", "evaluate", str(detector), "--normal", "digits", "--anomalous", "digits", "--resamples", "0"]
    refused(words, "resamples must be >= 1", capsys)
    refused(score(tmp_path / "nowhere", "digits", tmp_path), "no detector in", capsys)
    refused(["detect", "study", "--out", out, "--part", "3"], "part must be I/N", capsys)
    refused(["detect", "study", "--out", out, "--collect"], "holds no results", capsys)
    refused(["detect", "study", "--out", out, "--data", "digits", "--quick", "--part", "3/2"], "I in 1..N", capsys)


def test_scores_and_changes_can_be_chosen(tmp_path: Path) -> None:
    out = tmp_path / "d"
    few = pictures(tmp_path / "few", count=90)
    words = ["detect", "fit", "--data", str(few), "--out", str(out), "--changes", "--combine", "max"]
    assert main([*words, "--scores", "local-reconstruction", "rotation", "--false-alarm-rate", "0.2", *TINY]) == 0
    card = json.loads((out / "encoder" / "model.json").read_text())
    assert card["classes"][4:] == ["blurred", "flattened", "pasted", "mixed", "bent"]
    kept = json.loads((out / "detector.json").read_text())["detector"]
    assert kept["combine"] == "max"
    assert list(kept["members"]) == ["local-reconstruction", "rotation"]
    assert main(score(out, few, tmp_path)) == 0
    assert len((tmp_path / "scores.csv").read_text().splitlines()) == 91


def test_the_study_is_one_command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from holdfast.detect import study

    monkeypatch.setattr(study, "JOBS", {"labels-supervised": study.JOBS["labels-supervised"]})
    words = ["detect", "study", "--data", "digits", "--quick", "--device", "cpu", "--out", str(tmp_path)]
    assert main(words) == 0
    assert "supervised" in (tmp_path / "study.md").read_text()
    assert "Few labels" in (tmp_path / "study.html").read_text()
