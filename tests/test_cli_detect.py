"""``holdfast detect``, ``describe`` and ``predict`` with what does not fit: each ends with 2 and says what to do."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image
from vae_report.digits_anomalies import make_digits_anomalies

from holdfast.cli import main
from holdfast.data import ArraySplit, load
from holdfast.data.anomalies import AnomalySet, save_anomalies

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


def test_pictures_of_another_size_are_resized_it(detector: Path, tmp_path: Path) -> None:
    assert main(score(detector, pictures(tmp_path / "p", size=40), tmp_path)) == 0
    assert len((tmp_path / "scores.csv").read_text().splitlines()) == 4
    x = np.zeros((25, 8, 8), dtype=np.uint8)
    np.savez(tmp_path / "small.npz", x_train=x, y_train=np.arange(25) % 2)
    assert main(score(detector, tmp_path / "small.npz", tmp_path)) == 0
    assert len((tmp_path / "scores.csv").read_text().splitlines()) == 1 + 25
    assert main([*score(detector, tmp_path / "small.npz", tmp_path), "--split", "train"]) == 0
    assert len((tmp_path / "scores.csv").read_text().splitlines()) == 1 + 20  # training would hold a fifth out


def test_a_set_with_anomalies_of_another_size(
    detector: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    made = make_digits_anomalies()
    parts = [replace(s, images=s.images[:, :, 4:12, 4:12]) for s in (made.unlabeled, made.labeled, *made.sets)]
    path = save_anomalies(replace(made, unlabeled=parts[0], labeled=parts[1], sets=tuple(parts[2:])), tmp_path / "set")
    refused(score(detector, path, tmp_path), "for images of 16x16 pixels, and these have 8x8", capsys)


def test_constant_pictures_are_scored_but_teach_nothing(
    detector: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    flat = pictures(tmp_path / "flat", count=60, value=7)
    assert main(score(detector, flat, tmp_path)) == 0
    refused(
        ["detect", "fit", "--data", str(flat), "--out", str(tmp_path / "d"), *TINY, "--false-alarm-rate", "0.2"],
        "constant images?",
        capsys,
    )
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
    refused([*words, *TINY, "--false-alarm-rate", "0.2"], "two classes", capsys)


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
    refused(["detect", "fit", "--data", "digits"], "no place for the detector", capsys)
    refused(["detect", "evaluate", str(detector), "--normal", "digits"], "brings no anomalies of its own", capsys)
    words = ["detect", "evaluate", str(detector), "--normal", "digits", "--anomalous", "digits", "--resamples", "0"]
    refused(words, "resamples must be >= 1", capsys)
    refused(score(tmp_path / "nowhere", "digits", tmp_path), "no detector in", capsys)
    few = pictures(tmp_path / "p")
    refused([*score(detector, few, tmp_path), "--split", "test"], "is taken whole; leave it out", capsys)
    many = ["--latent", "1000000000000"]
    refused(["detect", "fit", "--data", "digits", "--out", out, *many], "latent must be in 1..4096", capsys)
    refused(["describe", "digits", "--out", out, *many], "latent must be in 1..4096", capsys)


def test_scores_and_changes_can_be_chosen(tmp_path: Path) -> None:
    out = tmp_path / "d"
    few = pictures(tmp_path / "few", count=90)
    words = ["detect", "fit", "--data", str(few), "--out", str(out), "--changes", "--combine", "max"]
    assert main([*words, "--scores", "local-reconstruction", "rotation", "--false-alarm-rate", "0.2", *TINY]) == 0
    card = json.loads((out / "encoder" / "model.json").read_text())
    assert card["classes"][4:] == ["blurred", "flattened", "pasted", "mixed", "warped"]
    kept = json.loads((out / "detector.json").read_text())["detector"]
    assert kept["combine"] == "max"
    assert list(kept["members"]) == ["local-reconstruction", "rotation"]
    assert main(score(out, few, tmp_path)) == 0
    assert len((tmp_path / "scores.csv").read_text().splitlines()) == 91


def test_a_family_of_commands_lists_itself(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["detect", "--help"]) == 0
    told = capsys.readouterr().out
    assert told.startswith("usage: holdfast detect COMMAND")
    assert all(f"  detect {name} " in told for name in ("fit", "score", "evaluate"))
    assert "data make" not in told
    assert main(["data"]) == 2
    assert "data check" in capsys.readouterr().out


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """What is asked of the set's maker; the digits stand for its garments."""
    seen: dict[str, Any] = {}

    def make(**named: Any) -> AnomalySet:
        seen.update(named)
        return replace(make_digits_anomalies(), manifest={"anomalies_per_set": {"corrupted": 20, "noise": 20}})

    monkeypatch.setattr("holdfast.data.making.make_fashion_anomalies", make)
    return seen


def test_kinds_and_shares_of_anomalies(
    asked: dict[str, Any], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["data", "make", "fashion-anomalies", "--out", str(tmp_path / "set")]
    assert main([*words, "--anomalies", "corrupted=0.5", "noise=0.5", "--strength", "0.8", "--seed", "4"]) == 0
    assert asked == {"root": None, "shares": {"corrupted": 0.5, "noise": 0.5}, "severity": 0.8, "seed": 4}
    told = capsys.readouterr().out
    assert "500 garments without and 100 with label; 2 test sets with anomalies (20 corrupted, 20 noise each)" in told
    refused([*words, "--anomalies", "noise=much"], "anomalies are KIND=SHARE", capsys)


@pytest.mark.slow
def test_a_run_without_a_detector_says_that_nothing_was_checked(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = tmp_path / "a run"
    assert main(["train", "--data", "digits", "--epochs", "1", "--out", str(run), "--device", "cpu", "--quiet"]) == 0
    few = pictures(tmp_path / "p", count=30)
    words = ["predict", str(run), "--data", str(few), "--out", str(tmp_path / "p.csv"), "--device", "cpu"]
    assert main([*words, "--workers", "0"]) == 0
    told = capsys.readouterr()
    assert "30 images, not checked for out-of-distribution inputs" in told.out
    assert f"holdfast detect fit --run '{run}' --data NORMAL" in told.err.replace("\n", "")
    made = ["detect", "fit", "--data", str(few), "--run", str(run), "--scores", "energy", "--device", "cpu"]
    assert main([*made, "--false-alarm-rate", "0.3", "--held-out", "0.5"]) == 0
    assert main([*words, "--workers", "0"]) == 0
    assert "flagged as ood" in capsys.readouterr().out
    assert all(line.split(",")[4] in ("0", "1") for line in (tmp_path / "p.csv").read_text().splitlines()[1:])


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("run") / "made"
    words = ["train", "--data", "digits", "--epochs", "1", "--out", str(folder), "--device", "cpu", "--quiet"]
    assert main(words) == 0
    return folder


def commands(detector: Path, run: Path, out: Path) -> dict[str, list[str]]:
    """Every command here that reads pictures or writes what it found."""
    return {
        "score": ["detect", "score", str(detector), "--data", "digits", "--out", str(out)],
        "predict": ["predict", str(run), "--data", "digits", "--out", str(out)],
        "evaluate": [
            "detect", "evaluate", str(detector), "--normal", "digits", "--anomalous", "digits", "--out", str(out)
        ],
        "describe": ["describe", "digits", "--out", str(out), "--epochs", "1"],
        "fit": ["detect", "fit", "--data", "digits", "--out", str(out), *TINY],
        "shortcuts": ["shortcuts", "--data", "digits", "--out", str(out), "--epochs", "1"],
    }  # fmt: skip


@pytest.mark.parametrize("name", ["score", "predict", "evaluate", "describe", "fit", "shortcuts"])
def test_numbers_and_places_that_cannot_be(
    detector: Path, run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], name: str
) -> None:
    words = commands(detector, run, tmp_path / "new")[name]
    for size in ("0", "-4"):
        refused([*words, "--batch-size", size], f"batch_size must be >= 1, got {size}", capsys)
    if name in ("score", "predict", "evaluate"):
        refused([*words, "--workers", "-1"], "workers must be >= 0, got -1", capsys)
    refused([*words, "--out", ""], "is empty", capsys)
    blocked = tmp_path / "file"
    blocked.write_text("mine")
    refused([*words, "--out", str(blocked / "a" / "b")], "cannot write to", capsys)
    assert [path.name for path in tmp_path.iterdir()] == ["file"]
    assert blocked.read_text() == "mine"


@pytest.mark.parametrize("name", ["evaluate", "describe"])
def test_findings_of_another_command_are_not_replaced(
    detector: Path, run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], name: str
) -> None:
    def content(folder: Path) -> dict[str, bytes]:
        return {str(path): path.read_bytes() for path in folder.rglob("*") if path.is_file()}

    before = content(run)
    refused(commands(detector, run, run)[name], f"{run} holds a training run; choose another --out", capsys)
    assert content(run) == before
    for file in ("findings.json", "report.html"):
        folder = tmp_path / file.partition(".")[0]
        folder.mkdir()
        (folder / file).write_bytes((run / file).read_bytes())
        refused(commands(detector, run, folder)[name], f"{folder} holds {file} of something else", capsys)
        assert (folder / file).read_bytes() == (run / file).read_bytes()
    words = commands(detector, run, tmp_path / "own")[name]
    assert main(words) == 0
    assert main(words) == 0, "its own old findings are replaced"


@pytest.mark.parametrize("name", ["score", "predict"])
def test_a_table_replaces_nothing_but_its_like(
    detector: Path, run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], name: str
) -> None:
    pictures(tmp_path)
    table = tmp_path / "table.csv"
    table.write_text("path,label\n0.png,1\n1.png,2\n")
    other = commands(detector, run, tmp_path / "out.csv")["predict" if name == "score" else "score"]
    assert main(other) == 0
    for place in (table, tmp_path / "0.png", tmp_path / "out.csv"):
        before = place.read_bytes()
        words = commands(detector, run, place)[name]
        refused([*words, "--data", str(table)], f"{place} is there and holds something else", capsys)
        assert place.read_bytes() == before
    refused(commands(detector, run, tmp_path)[name], "is not a file; name a CSV file", capsys)
    words = [*commands(detector, run, tmp_path / "own.csv")[name], "--data", str(table)]
    assert main(words) == 0
    assert main(words) == 0, "its own old table is replaced"


def test_a_model_for_wide_pictures_answers_every_row_of_a_table(tmp_path: Path) -> None:
    """The labels of a table are neither needed nor looked at: which half of a picture is bright says the class."""
    rng = np.random.default_rng(0)
    side = rng.integers(0, 2, 120)
    x = rng.integers(0, 60, (120, 8, 24), dtype=np.uint8)
    for image, right in zip(x, side, strict=True):
        image[:, 12 * right : 12 * right + 12] += 150
    np.savez(tmp_path / "train.npz", x_train=x, y_train=side, classes=np.array(["left", "right"]))
    run = str(tmp_path / "run")
    words = ["train", "--data", str(tmp_path / "train.npz"), "--epochs", "3", "--out", run, "--device", "cpu"]
    assert main([*words, "--lr", "0.02", "--batch-size", "16", "--quiet"]) == 0
    for i in range(30):
        Image.fromarray(x[i]).resize((48, 16)).save(tmp_path / f"{i}.png")
    (tmp_path / "table.csv").write_text("path\n" + "".join(f"{i}.png\n" for i in range(30)))
    np.savez(tmp_path / "alone.npz", x_train=x[:30])
    out = tmp_path / "answers.csv"
    for data in ("table.csv", "alone.npz"):
        words = ["predict", run, "--data", str(tmp_path / data), "--out", str(out), "--device", "cpu"]
        assert main([*words, "--workers", "0"]) == 0
        answers = [line.split(",")[1] for line in out.read_text().splitlines()[1:]]
        assert answers == [("left", "right")[k] for k in side[:30]]


def test_an_array_of_images_alone(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    np.save(tmp_path / "x.npy", np.zeros((5, 8, 8)))
    words = ["detect", "fit", "--out", str(tmp_path / "d"), "--data"]
    refused([*words, str(tmp_path / "x.npy")], "holds one array of shape (5, 8, 8), not the dictionary", capsys)
    (tmp_path / "y.npy").write_bytes(b"hello")
    refused([*words, str(tmp_path / "y.npy")], "it is not an array; write the file again", capsys)


def test_an_evaluation_and_a_map_are_printed_and_written(
    detector: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rng = np.random.default_rng(0)
    (tmp_path / "noise").mkdir()
    for i in range(20):
        Image.fromarray(rng.integers(0, 256, (8, 8), dtype=np.uint8)).save(tmp_path / "noise" / f"{i}.png")
    words = ["detect", "evaluate", str(detector), "--normal", "digits", "--anomalous", str(tmp_path / "noise")]
    assert main([*words, "--out", str(tmp_path / "judged"), "--device", "cpu"]) == 0
    told = capsys.readouterr().out
    assert "auroc" in told.lower()
    stored = json.loads((tmp_path / "judged" / "findings.json").read_text())["findings"]
    auroc = next(f for f in stored if f["name"] == "auroc")
    assert f"{auroc['value']:.3f}" in told
    assert str(tmp_path / "judged" / "report.html") in told.replace("\n", "")
    assert main(["describe", "digits", "--detector", str(detector), "--out", str(tmp_path / "map")]) == 0
    told = capsys.readouterr().out
    assert all(name in told for name in ("silhouette", "linear", "knn"))
    assert (tmp_path / "map" / "report.html").exists()


@pytest.mark.slow
@pytest.mark.parametrize(("name", "part", "rows"), [("score", "train", 5), ("predict", "test", 3)])
def test_rows_that_are_left_out_are_counted(
    detector: Path, run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], name: str, part: str, rows: int
) -> None:
    split = load("digits").test
    assert isinstance(split, ArraySplit)
    x = split.images[:8, 0].numpy()
    np.savez(tmp_path / "parts.npz", x_train=x[:5], x_test=x[5:])
    np.savez(tmp_path / "whole.npz", x_train=x)
    head = ["detect", "score", str(detector)] if name == "score" else ["predict", str(run)]

    def answer(data: str, *more: str) -> tuple[int, str]:
        words = [*head, "--data", str(tmp_path / data), "--out", str(tmp_path / "out.csv"), "--device", "cpu", *more]
        assert main(words) == 0
        return len((tmp_path / "out.csv").read_text().splitlines()) - 1, " ".join(capsys.readouterr().err.split())

    said = f"parts.npz has parts, and only the {part} part is taken: {rows} of 8 rows; --split chooses another"
    found, told = answer("parts.npz")
    assert found == rows
    assert said in told
    assert answer("parts.npz", "--split", "test")[0] == 3
    for words in (["parts.npz", "--split", part], ["whole.npz"]):
        assert "rows" not in answer(*words)[1]
    assert answer("whole.npz")[0] == 8


@pytest.mark.slow
def test_columns_of_any_name(detector: Path, run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A table with names of its own gives every command the same as one with ours."""
    pictures(tmp_path, count=20)
    names = [f"{i}.png" for i in range(20)]
    (tmp_path / "ours.csv").write_text("path\n" + "\n".join(names) + "\n")
    (tmp_path / "odd.csv").write_text("site,Bild\n" + "".join(f"a,{name}\n" for name in names))
    odd, chosen = str(tmp_path / "odd.csv"), ["--columns", "image=Bild"]
    for command in ("score", "predict"):
        tables = {}
        for data, more in ((str(tmp_path / "ours.csv"), []), (odd, chosen)):
            out = tmp_path / f"{command}.csv"
            assert main([*commands(detector, run, out)[command], "--data", data, *more, "--workers", "0"]) == 0
            tables[data] = out.read_text()
        assert len({*tables.values()}) == 1
    noise = tmp_path / "noise"
    noise.mkdir()
    Image.fromarray(np.arange(64, dtype=np.uint8).reshape(8, 8)).save(noise / "0.png")
    words = ["detect", "evaluate", str(detector), "--normal", odd, "--anomalous", str(noise), *chosen]
    assert main([*words, "--workers", "0"]) == 0, "columns are of the table; the folder has none"
    made = ["detect", "fit", "--data", odd, "--out", str(tmp_path / "d"), *TINY, *chosen, "--held-out", "0.5"]
    assert main([*made, "--false-alarm-rate", "0.3"]) == 0
    capsys.readouterr()
    refused([*commands(detector, run, tmp_path / "x.csv")["score"], "--data", odd], "has no column 'path'", capsys)
    words = [*commands(detector, run, tmp_path / "x.csv")["predict"], "--data", str(noise), *chosen]
    refused(words, f"columns cannot be used for {noise}", capsys)
    words = ["detect", "evaluate", str(detector), "--normal", str(noise), "--anomalous", str(noise), *chosen]
    refused(words, f"columns cannot be used for {noise}", capsys)
    assert not (tmp_path / "x.csv").exists()


def test_a_run_remembers_the_columns_of_its_own_table(tmp_path: Path) -> None:
    pictures(tmp_path, count=20)
    rows = "".join(f"{i}.png,{'ab'[i % 2]}\n" for i in range(20))
    (tmp_path / "odd.csv").write_text(f"Bild,Art\n{rows}")
    data, out = str(tmp_path / "odd.csv"), str(tmp_path / "run")
    words = ["train", "--data", data, "--columns", "image=Bild,label=Art", "--epochs", "1", "--out", out, "--quiet"]
    assert main([*words, "--device", "cpu", "--workers", "0"]) == 0
    assert main(["predict", out, "--data", data, "--out", str(tmp_path / "p.csv"), "--workers", "0"]) == 0
