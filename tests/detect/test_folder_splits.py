"""Splits mean the same in every command: folders have the parts that ``data check`` shows, and nothing is fitted on a
test split."""

from __future__ import annotations

import json
import warnings
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from holdfast.cli import main
from holdfast.data import Split, load
from holdfast.data.unlabelled_images import few_labels, open_images, open_unlabelled
from holdfast.detect import FittedDetector, describe, evaluate, fit, predict
from holdfast.detect.fitted_detector import image_hashes
from holdfast.errors import HoldfastError
from holdfast.quality import check_data
from holdfast.train import fit as train
from tests.data.pictures import noise, write

QUICK = {"scores": ("reconstruction",), "epochs": 1, "device": "cpu", "false_alarm_rate": 0.2}
READ = {"device": "cpu", "workers": 0}


def fill(folder: Path, count: int, seed: int) -> None:
    """Grey pictures of 8x8 pixels, all different; those of dogs are bright on the right."""
    for name in ("cat", "dog"):
        for i in range(count):
            pixels = noise(8, 8, seed=1000 * seed + 500 * (name == "dog") + i, channels=1) // 3
            pixels[:, 4:] += 150 * (name == "dog")
            write(folder / name / f"{i:03d}.png", pixels)


@pytest.fixture(scope="module")
def photos(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Folders train, val and test of two classes."""
    root = tmp_path_factory.mktemp("photos")
    for seed, (part, count) in enumerate({"train": 30, "Val": 5, "test": 10}.items()):
        fill(root / part, count, seed)
    return root


@pytest.fixture(scope="module")
def classes(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Folders of two classes, and no others."""
    root = tmp_path_factory.mktemp("classes")
    fill(root, 40, 7)
    return root


@pytest.fixture(scope="module")
def others(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("others")
    for i in range(12):
        write(folder / f"{i}.png", noise(8, 8, seed=90_000 + i, channels=1))
    return folder


def places(split: Split) -> list[str]:
    return [split.describe(i) for i in range(len(split))]


def hashes(split: Split) -> set[int]:
    return set(image_hashes(split).tolist())


@pytest.mark.parametrize("part", ["train", "val", "test"])
def test_parts_and_classes_of_a_folder_are_those_that_data_check_shows(photos: Path, part: str) -> None:
    split, names = open_images(photos, split=part)
    shown = check_data(photos).splits[part]
    assert dict(zip(names, torch.bincount(split.labels).tolist(), strict=True)) == shown
    loaded = load(photos).splits[part]
    assert (places(split), split.labels.tolist()) == (places(loaded), loaded.labels.tolist())


def test_where_nobody_chooses_a_part_one_is_taken_and_the_rest_is_counted(photos: Path) -> None:
    told: list[str] = []
    assert len(open_unlabelled(photos, note=told.append)) == 60
    assert len(open_unlabelled(photos, usual="test", note=told.append)) == 20
    assert [text.partition("only ")[2] for text in told] == [
        "the train part is taken: 60 of 90 rows; --split chooses another",
        "the test part is taken: 20 of 90 rows; --split chooses another",
    ]


def test_a_folder_of_classes_is_whole_until_a_part_is_asked_for(classes: Path, tmp_path: Path) -> None:
    whole, names = open_images(classes, usual="test")
    assert (len(whole), names) == (80, ("cat", "dog"))
    assert whole.labels.tolist() == [0] * 40 + [1] * 40
    for part in ("train", "test"):
        loaded = load(classes, data_seed=3).splits[part]
        assert places(open_unlabelled(classes, split=part, terms={"data_seed": 3})) == places(loaded)
    fill(tmp_path, 2, 0)
    write(tmp_path / "stray.png", noise(8, 8, channels=1))
    assert open_unlabelled(tmp_path).labels.tolist() == [-1, 0, 0, 1, 1]


def test_parts_without_classes(tmp_path: Path) -> None:
    for part, count in {"train": 3, "test": 2}.items():
        for i in range(count):
            write(tmp_path / part / f"{i}.png", noise(8, 8, seed=i, channels=1))
    split, names = open_images(tmp_path, split="test")
    assert (len(split), names, split.labels.tolist()) == (2, (), [-1, -1])
    assert len(open_unlabelled(tmp_path)) == 3


def test_a_set_s_name_goes_before_a_folder_of_that_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As in training; ./digits is the folder."""
    write(tmp_path / "digits" / "0.png", noise(8, 8, channels=1))
    monkeypatch.chdir(tmp_path)
    assert len(open_unlabelled("digits")) == 1198
    assert len(open_unlabelled("./digits")) == len(open_unlabelled(Path("digits"))) == 1


def test_a_detector_learns_from_the_training_part_alone(photos: Path) -> None:
    fitted = fit(photos, **QUICK)  # type: ignore[arg-type]
    assert fitted.seen is not None
    assert set(fitted.seen.tolist()) == hashes(load(photos).train)


def test_nothing_is_fitted_on_a_test_split(photos: Path, tmp_path: Path) -> None:
    with pytest.raises(HoldfastError, match="split 'test': nothing is fitted on a test split"):
        fit(photos, split="test", **QUICK)  # type: ignore[arg-type]
    fill(tmp_path / "alone" / "test", 30, 1)
    np.savez(tmp_path / "alone.npz", x_test=np.zeros((60, 8, 8), np.uint8))
    (tmp_path / "alone.csv").write_text("path,split\n" + f"{photos}/test/cat/000.png,test\n" * 60)
    for name in ("alone", "alone.npz", "alone.csv"):
        for call in (
            lambda name=name: fit(tmp_path / name, **QUICK),
            lambda name=name: describe(tmp_path / name, epochs=1, device="cpu"),
            lambda name=name: few_labels(load(photos), None, unlabeled=str(tmp_path / name)),
        ):
            with pytest.raises(HoldfastError, match="has a test part alone, and nothing is fitted on a test split"):
                call()


def test_a_detector_of_a_run_learns_from_what_the_run_was_trained_on(
    classes: Path, others: Path, tmp_path: Path
) -> None:
    """With the run's own seed and validation split; `detect evaluate` then knows which images it has not seen."""
    run = tmp_path / "run"
    train(str(classes), epochs=1, device="cpu", out=run, data_seed=5, val=0.1)
    told: list[str] = []
    fitted = fit(classes, run=run, note=told.append, **{**QUICK, "scores": ("energy",)})  # type: ignore[arg-type]
    own = load(classes, data_seed=5, val=0.1)
    assert fitted.seen is not None
    assert set(fitted.seen.tolist()) == hashes(own.train)
    assert own.test is not None
    assert not set(fitted.seen.tolist()) & hashes(own.test)
    assert any("only its training part is learned from" in text for text in told)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        evaluate(run / "detector", classes, others, split="test", resamples=10, **READ)  # type: ignore[arg-type]
    assert predict(run, classes, split="test", **READ).labels.shape == own.test.labels.shape  # type: ignore[arg-type]


def test_images_that_a_detector_was_fitted_on_are_counted(
    photos: Path, others: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    fitted = fit(photos, out=tmp_path / "d", **QUICK)  # type: ignore[arg-type]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        clean = evaluate(fitted, photos, others, resamples=10, **READ)  # type: ignore[arg-type]
    assert not any("fitted_on" in f.settings for f in clean)
    kept = FittedDetector.load(tmp_path / "d")
    with pytest.warns(RuntimeWarning, match="60 of 60 normal images are among those that the detector was fitted on"):
        found = evaluate(kept, photos, others, split="train", resamples=10, **READ)  # type: ignore[arg-type]
    assert found[0].settings["fitted_on"] == {"normal": 60, "anomalous": 0}
    with pytest.warns(RuntimeWarning, match=r"60 of 60 anomalous .* the numbers are worse than on new images"):
        evaluate(kept, photos, open_unlabelled(photos), resamples=10, **READ)  # type: ignore[arg-type]
    words = ["detect", "evaluate", str(tmp_path / "d"), "--normal", str(photos), "--anomalous", str(others)]
    with warnings.catch_warnings():
        warnings.simplefilter("always")
        assert main([*words, "--split", "train", "--out", str(tmp_path / "e"), "--device", "cpu"]) == 0
    assert "warning: 60 of 60 normal images are among those" in " ".join(capsys.readouterr().err.split())
    page = (tmp_path / "e" / "report.html").read_text(encoding="utf-8")
    assert "evaluated on 60 normal images that it was fitted on: tells anomalies" in page
    assert "was fitted on 60 normal images among these" in page


def test_a_folder_of_classes_that_was_learned_whole_can_be_learned_in_part(classes: Path, others: Path) -> None:
    whole = fit(classes, **QUICK)  # type: ignore[arg-type]
    with pytest.warns(RuntimeWarning, match=r"16 of 16 normal images .* or fit the detector with --split train"):
        evaluate(whole, classes, others, split="test", resamples=10, **READ)  # type: ignore[arg-type]
    part = fit(classes, split="train", **QUICK)  # type: ignore[arg-type]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        evaluate(part, classes, others, split="test", resamples=10, **READ)  # type: ignore[arg-type]


def test_copies_of_an_image_are_known_wherever_they_lie(photos: Path, others: Path, tmp_path: Path) -> None:
    """By their pixels: renamed, in a table or as an array."""
    fitted = fit(photos, **QUICK)  # type: ignore[arg-type]
    first = np.asarray(Image.open(photos / "train" / "cat" / "000.png"))
    fresh = noise(8, 8, seed=123, channels=1)
    np.savez(tmp_path / "new.npz", x_test=np.stack([first, fresh]))
    with pytest.warns(RuntimeWarning, match="1 of 2 normal images"):
        evaluate(fitted, tmp_path / "new.npz", others, resamples=10, **READ)  # type: ignore[arg-type]


def test_anomalies_without_parts_are_not_cut(photos: Path, classes: Path) -> None:
    fitted = fit(photos, **QUICK)  # type: ignore[arg-type]
    found = evaluate(fitted, photos, classes, split="test", resamples=10, **READ)  # type: ignore[arg-type]
    counts = next(f for f in found if f.name == "auroc").evidence["confusion"]
    assert counts["true_positive"] + counts["false_negative"] == 80
    assert counts["true_negative"] + counts["false_positive"] == 20


def test_tables_whose_pictures_lie_elsewhere(photos: Path, others: Path, tmp_path: Path) -> None:
    lines = [
        f"train/{name}/{i:03d}.png,{part}" for name in ("cat", "dog") for i, part in enumerate(["train", "test"] * 15)
    ]
    (tmp_path / "table.csv").write_text("\n".join(["path,split", *lines]))
    fitted = fit(tmp_path / "table.csv", root=photos, held_out=0.4, **QUICK)  # type: ignore[arg-type]
    assert fitted.seen is not None
    assert len(fitted.seen) == 30
    how = {"root": photos, "split": "test", "resamples": 10, **READ}
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        evaluate(fitted, tmp_path / "table.csv", others, **how)  # type: ignore[arg-type]


def test_predictions_of_one_part_of_a_folder(photos: Path, tmp_path: Path) -> None:
    run, out = tmp_path / "run", tmp_path / "p.csv"
    assert main(["train", "--data", str(photos), "--epochs", "1", "--out", str(run), "--device", "cpu", "--quiet"]) == 0
    words = ["predict", str(run), "--data", str(photos), "--out", str(out), "--device", "cpu", "--workers", "0"]
    for more, part in (([], "test"), (["--split", "test"], "test"), (["--split", "val"], "Val")):
        assert main([*words, *more]) == 0
        listed = [line.split(",")[0] for line in out.read_text().splitlines()[1:]]
        assert listed == sorted(str(path) for path in (photos / part).rglob("*.png"))


def test_images_that_a_run_was_trained_on_are_mentioned(classes: Path, photos: Path, tmp_path: Path) -> None:
    for name, folder, told_of in (("a", classes, True), ("b", photos, False)):
        run, told = tmp_path / name, list[str]()
        words = ["train", "--data", str(folder), "--epochs", "1", "--out", str(run), "--device", "cpu", "--quiet"]
        assert main(words) == 0
        found = predict(run, folder, note=told.append, **READ)  # type: ignore[arg-type]
        count = len(load(folder).train)
        said = f"{count} of these {len(found)} images were trained on; --split test leaves them out"
        assert (said in told) == told_of
        told.clear()
        predict(run, folder, split="test", note=told.append, **READ)  # type: ignore[arg-type]
        predict(run, folder / "cat" if told_of else folder / "test", note=told.append, **READ)  # type: ignore[arg-type]
        assert not any("trained on" in text for text in told)


def test_the_map_of_a_labelled_folder_says_how_its_classes_separate(photos: Path, tmp_path: Path) -> None:
    told: list[str] = []
    found = describe(photos, out=tmp_path, epochs=1, device="cpu", note=told.append, split="test")
    assert {f.name for f in found} == {"map", "silhouette", "linear", "knn"}
    evidence = found[0].evidence
    assert (evidence["classes"], len(evidence["labels"])) == (["cat", "dog"], 20)
    assert any("on 60 images" in text for text in told), "the VAE is trained on the training part"
    assert "a linear probe tells the class of" in (tmp_path / "report.html").read_text(encoding="utf-8")


def test_an_image_without_a_class_does_not_hide_those_of_the_others(classes: Path, tmp_path: Path) -> None:
    fill(tmp_path / "set", 6, 3)
    write(tmp_path / "set" / "stray.png", noise(8, 8, channels=1))
    found = describe(tmp_path / "set", out=tmp_path / "map", epochs=1, device="cpu")
    assert {f.name for f in found} == {"map", "silhouette", "linear", "knn"}
    assert (found[0].evidence["classes"], found[0].evidence["labels"][0]) == (["cat", "dog", "no class"], 2)
    kept = json.loads((tmp_path / "map" / "findings.json").read_text())["findings"]
    assert next(f["n"] for f in kept if f["name"] == "silhouette") == 12


def test_unlabelled_images_leave_out_what_is_held_out(classes: Path, photos: Path) -> None:
    """`--data photos --unlabeled photos` would learn from the images it is tested on."""
    for data in (load(classes, val=0.1, data_seed=2), load("digits", val=0.1)):
        source = str(classes) if data.name != "digits" else "digits"
        made = few_labels(data, None, unlabeled=source)
        assert made.unlabeled is not None
        held = hashes(data.test) | hashes(data.val)  # type: ignore[arg-type]
        assert set(places(made.unlabeled)) == set(places(data.train))
        assert not hashes(made.unlabeled) & (held - hashes(data.train))
        assert any("in the validation or test split" in str(note) for note in made.notes)
    made = few_labels(load(photos), None, unlabeled=str(photos))
    assert made.unlabeled is not None
    assert len(made.unlabeled) == 60
