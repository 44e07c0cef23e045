"""Planted duplicates, leaks and flipped labels are found, told apart, written down and shown."""

from __future__ import annotations

import csv
import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from sklearn.datasets import load_digits
from torch.utils.data import DataLoader
from torchvision.datasets import ImageFolder
from torchvision.transforms import v2

import holdfast
from holdfast.cli import main
from holdfast.data import load
from holdfast.data.data_check import DataSample
from holdfast.errors import HoldfastError
from holdfast.quality import DataReport, check_data
from holdfast.quality.label_errors import JudgedLabels, SuspectLabel, assign_folds
from tests.data.pictures import noise, truncated_jpeg, write
from tests.detect.conftest import Recorder


def rows(path: Path) -> list[dict[str, str]]:
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


@pytest.fixture(scope="module")
def planted(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, set[int]]:
    """Digits with 5 % of the training labels flipped, two identical pairs, and two leaks; (file, flipped)."""
    rng = np.random.default_rng(0)
    digits = load_digits(n_class=4)
    x = (digits.images / 16 * 255).round().astype(np.uint8)
    y = digits.target.astype(np.int64)
    xt, yt = np.concatenate([x[400:460], x[[7, 8]]]), np.append(y[400:460], y[[7, 8]])
    x, y = np.concatenate([x[:400], x[[3, 4]]]), np.append(y[:400], y[[3, 4]])
    flipped = rng.choice(400, 20, replace=False)
    y[flipped] = (y[flipped] + rng.integers(1, 4, 20)) % 4
    path = tmp_path_factory.mktemp("planted") / "digits.npz"
    np.savez(path, x_train=x, y_train=y, x_test=xt, y_test=yt)
    return path, set(flipped.tolist())


@pytest.fixture(scope="module")
def report(planted: tuple[Path, set[int]]) -> DataReport:
    path = planted[0]
    return check_data(path, label_errors=True, folds=2, epochs=8, out=str(path.parent / "checked"), device="cpu")


@pytest.mark.slow
def test_flipped_labels_are_found_by_models_that_never_saw_them(
    report: DataReport, planted: tuple[Path, set[int]]
) -> None:
    suspects = {s.sample.position for s in report.label_errors["train"].suspects}
    found = suspects & planted[1]
    assert len(found) / len(suspects) > 0.7
    assert len(found) / len(planted[1]) > 0.7
    assert report.label_errors["train"].noise == pytest.approx(0.05, abs=0.05)
    assert set(report.label_errors) == {"train", "test"}
    assert "labels of the train split are probably wrong" in report.to_text()


@pytest.mark.slow
def test_what_is_said_of_the_share_that_is_wrong(report: DataReport) -> None:
    (first, *_) = report.label_errors["train"].suspects
    for least, words in (
        (0.837, "at least 84% of those listed should be wrong, unless"),
        (None, "too few to say how many"),
    ):
        judged = JudgedLabels((first,), noise=0.05, accuracy=0.9, n=100, least_precision=least)
        assert words in replace(report, label_errors={"train": judged}).to_text()
    weak = replace(JudgedLabels((first,), noise=0.32, accuracy=0.63, n=303), skill=0.26)
    text = replace(report, label_errors={"train": weak}).to_text()
    assert "warning: held-out predictions agree with 63% of the train labels: too few to tell" in text
    assert "32" not in text.split("labels of the train split")[1].split("warning")[0], "the share is not believed"
    none = JudgedLabels((), noise=0.0, accuracy=0.9, n=100)
    assert "too few to say" not in replace(report, label_errors={"train": none}).to_text()


@pytest.mark.slow
def test_leaks_and_identical_images_are_told_apart(report: DataReport) -> None:
    pairs = {frozenset((s.split, s.position) for s in group.samples) for group in report.duplicates if group.exact}
    assert pairs == {
        frozenset({("train", 3), ("train", 400)}),
        frozenset({("train", 4), ("train", 401)}),
        frozenset({("train", 7), ("test", 60)}),
        frozenset({("train", 8), ("test", 61)}),
    }
    assert report.leaked["test"] >= 2
    assert f"leakage: {report.leaked['test']} test images have a duplicate in train" in report.to_text()


@pytest.mark.slow
def test_tables_findings_and_page_say_the_same(report: DataReport, planted: tuple[Path, set[int]]) -> None:
    out = planted[0].parent / "checked"
    listed = rows(out / "label_errors.csv")
    judged = report.label_errors
    assert len(listed) == sum(len(own.suspects) for own in judged.values())
    leaks = [row for row in rows(out / "duplicates.csv") if row["leak"] == "1"]
    assert len(leaks) == sum(len(group.samples) for group in report.leaks)
    findings = json.loads((out / "findings.json").read_text())["findings"]
    value = {(f["name"], f["where"].get("split")): f["value"] for f in findings if f["name"] != "samples"}
    assert value["label_errors", "train"] == len(judged["train"].suspects)
    assert value["leaked_images", "test"] == report.leaked["test"]
    page = (out / "data_check.html").read_text()
    assert "Labels that are probably wrong (train)" in page
    assert "Leakage: test images" in page
    assert page.count("data:image/png;base64,") > 20
    assert "http://" not in page.replace("http://www.w3.org", "")


def test_the_closing_line_counts_labels_that_are_probably_wrong() -> None:
    sample = DataSample("train", 0, "a.png", "ant")
    judged = JudgedLabels((SuspectLabel(sample, 0.1, "bee", 0.9, 0.9),), 0.1, 0.9, 10)
    report = DataReport("set", {}, {}, {}, {}, label_errors={"train": judged})
    assert report.to_text().endswith("every image was read; found: 1 label that is probably wrong")


def test_near_duplicates_across_folders_are_leaks_and_differing_labels_are_said(tmp_path: Path) -> None:
    pictures = [noise(20, 20, seed=i) for i in range(6)]
    for i in range(4):
        write(tmp_path / f"train/{'ant' if i % 2 else 'bee'}/{i}.png", pictures[i])
    write(tmp_path / "test/ant/4.png", pictures[4])
    write(tmp_path / "test/bee/5.png", pictures[5])
    assert check_data(tmp_path).duplicates == ()
    write(tmp_path / "test/ant/copy.png", np.clip(pictures[1].astype(int) + 3, 0, 255).astype(np.uint8))
    write(tmp_path / "train/ant/again.png", pictures[0])
    report = check_data(tmp_path)
    kinds = {(group.exact, group.leaks, group.labels_differ) for group in report.duplicates}
    assert kinds == {(True, False, True), (False, True, False)}
    text = report.to_text()
    assert "1 group of identical images (2 images), 1 group of near duplicates (2 images)" in text
    assert "1 group has different labels" in text
    closing = "every image was read; found: 2 groups of duplicates (1 with different labels), "
    assert text.endswith(closing + "1 held-out image with a duplicate in an earlier split")
    assert "no problem was found" not in text
    assert "leakage: 1 test image has a duplicate in train" in text
    assert check_data(tmp_path, near=0).leaks == ()
    assert report.sound


def test_a_leak_is_shown_with_the_split_that_it_spoils(tmp_path: Path) -> None:
    """An image of val and test spoils the test split, not val; the pair shows the image of an earlier split first."""
    pictures = [noise(20, 20, seed=i) for i in range(9)]
    for i, split in enumerate(("train", "val", "test") * 3):
        write(tmp_path / f"{split}/{'ab'[i // 3 % 2]}/{i}.png", pictures[i])
    write(tmp_path / "test/a/of_val.png", pictures[1])
    write(tmp_path / "test/a/of_train.png", pictures[0])
    report = check_data(tmp_path, out=str(tmp_path / "out"))
    shown = {
        f.where["split"]: [[row["source"].split("/")[-1] for row in group["rows"]] for group in f.evidence["groups"]]
        for f in report.findings
        if f.name == "leaked_images"
    }
    assert shown["val"] == []
    assert sorted(shown["test"]) == [["0.png", "of_train.png"], ["1.png", "of_val.png"]]
    page = (tmp_path / "out/data_check.html").read_text()
    assert "Leakage: val" not in page
    assert "2 held-out images have a duplicate in an earlier split" in page


def test_one_of_a_kind_is_counted_in_the_singular(tmp_path: Path) -> None:
    for i in range(4):
        write(tmp_path / f"data/{'ab'[i % 2]}/{i}.png", noise(8, 8, seed=i))
    truncated_jpeg(tmp_path / "data/a/half.jpg")
    check_data(tmp_path / "data", out=str(tmp_path / "out"))
    assert "1 file cannot be read" in (tmp_path / "out/data_check.html").read_text()


def test_classes_are_crossed_with_groups(tmp_path: Path) -> None:
    names = [("a", "wood"), ("a", "wood"), ("a", "sea"), ("b", "sea"), ("b", "")]
    lines = ["path,label,group,split"]
    for i, (label, group) in enumerate(names):
        write(tmp_path / f"{i}.png", noise(6, 6, seed=i))
        lines.append(f"{i}.png,{label},{group},train")
    (tmp_path / "set.csv").write_text("\n".join(lines))
    report = check_data(tmp_path / "set.csv", out=str(tmp_path / "out"))
    expected = {("a", "sea"): 1, ("a", "wood"): 2, ("a", "(unknown)"): 0, ("b", "sea"): 1, ("b", "wood"): 0}
    assert report.cells["train"] == expected | {("b", "(unknown)"): 1}
    line = next(line for line in report.to_text().splitlines() if line.startswith("class x group (train)"))
    assert line.split() == ["class", "x", "group", "(train)", "sea", "wood", "(unknown)"]
    assert "Samples by class and group (train)" in (tmp_path / "out/data_check.html").read_text()
    assert len(rows(tmp_path / "out/cells.csv")) == 6


def test_the_command_writes_the_page_and_refuses_to_replace_it(tmp_path: Path, capsys: Any) -> None:
    for i in range(4):
        write(tmp_path / f"data/{'ab'[i % 2]}/{i}.png", noise(8, 8, seed=i))
    truncated_jpeg(tmp_path / "data/a/half.jpg")
    words = ["data", "check", str(tmp_path / "data"), "--out", str(tmp_path / "out")]
    assert main(words) == 2, "an unreadable file"
    assert "pictures:" in capsys.readouterr().out
    page = (tmp_path / "out/data_check.html").read_text()
    assert "half.jpg" in page
    assert rows(tmp_path / "out/unreadable.csv")[0]["split"] == "train"
    assert main(words) == 2
    assert "--overwrite" in capsys.readouterr().err
    assert (tmp_path / "out/data_check.html").read_text() == page
    (tmp_path / "data/a/half.jpg").unlink()
    assert main([*words, "--overwrite"]) == 0
    assert not (tmp_path / "out/unreadable.csv").exists()


def test_a_run_is_never_written_over(tmp_path: Path) -> None:
    (tmp_path / "run.yaml").touch()
    with pytest.raises(HoldfastError, match="holds a training run"):
        check_data("digits", out=str(tmp_path), overwrite=True)
    (tmp_path / "audit").mkdir()
    (tmp_path / "audit/findings.json").write_text("{}")
    with pytest.raises(HoldfastError, match="not of a data check"):
        check_data("digits", out=str(tmp_path / "audit"), overwrite=True)
    assert (tmp_path / "audit/findings.json").exists()


def test_too_few_samples_for_the_folds_are_refused_with_the_class(tmp_path: Path) -> None:
    for i in range(7):
        write(tmp_path / f"{'ab'[i > 4]}/{i}.png", noise(8, 8, seed=i))
    with pytest.raises(HoldfastError, match=r"class 'b' has 2 training samples, and each of 4 folds needs one"):
        check_data(tmp_path, label_errors=True)
    with pytest.raises(HoldfastError, match="folds must be in"):
        check_data(tmp_path, label_errors=True, folds=1)


def test_folds_are_even_by_class_and_keep_duplicates_together() -> None:
    labels = torch.arange(120) % 3
    tied = [[0, 3, 9], [1, 2], [30, 60]]
    fold = assign_folds(labels, tied, 4, seed=0)
    for group in tied:
        assert len(fold[group].unique()) == 1
    for label in range(3):
        counts = torch.bincount(fold[labels == label], minlength=4)
        assert int(counts.max() - counts.min()) <= 3


def test_a_report_is_one_line_in_python(pets: Path) -> None:
    counts = "7 train images, 3 test images, 2 groups of duplicates, 1 leaks between splits"
    assert repr(check_data(pets)) == f"<DataReport of {pets.name}: {counts}>"


def test_the_public_name_is_the_same_function() -> None:
    assert holdfast.check_data is check_data


def test_positions_count_readable_images_only(tmp_path: Path) -> None:
    same = noise(12, 12, seed=1)
    truncated_jpeg(tmp_path / "train/a/0.jpg")
    write(tmp_path / "train/a/1.png", same)
    write(tmp_path / "train/b/2.png", noise(12, 12, seed=2))
    write(tmp_path / "test/a/3.png", same)
    (group,) = check_data(tmp_path).duplicates
    kept = load(tmp_path, skip_unreadable=True)
    for sample in group.samples:
        assert kept.splits[sample.split].describe(sample.position) == sample.source


@pytest.fixture(scope="module")
def pets(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Grey pictures in colour files, some of other sizes; one twice in training, one leaked into test."""
    place = tmp_path_factory.mktemp("pets")
    pictures = [noise(12, 14 if i == 3 else 12, seed=i) for i in range(8)]
    for i, picture in enumerate(pictures):
        split = "test" if i > 5 else "train"
        write(place / f"{split}/{'cat' if i % 2 else 'dog'}/{i}.png", picture)
    write(place / "train/cat/9.png", pictures[0])
    write(place / "test/dog/9.png", pictures[1])
    return place


def by_hand(read: Any) -> Callable[[Path], Any]:
    return lambda place: {split: read(place / split) for split in ("train", "test")}


def hugging_face(place: Path) -> Any:
    datasets = pytest.importorskip("datasets")
    paths = sorted(place.glob("*/*.png"))
    features = datasets.Features(picture=datasets.Image(), kind=datasets.ClassLabel(names=["cat", "dog"]))
    return datasets.Dataset.from_dict(
        {"picture": list(map(str, paths)), "kind": [path.parent.name for path in paths]}, features=features
    )


FORMS: dict[str, Callable[[Path], Any]] = {
    "ImageFolder": by_hand(ImageFolder),
    "ImageFolder with a transform": by_hand(lambda place: ImageFolder(place, transform=v2.ToImage())),
    "DataLoader": by_hand(lambda place: DataLoader(ImageFolder(place), batch_size=3, shuffle=True)),
    "Hugging Face": by_hand(hugging_face),
    "of two kinds": lambda place: {"train": ImageFolder(place / "train"), "test": hugging_face(place / "test")},
}


@pytest.mark.parametrize("form", FORMS)
def test_objects_are_checked_as_the_folder_is(pets: Path, form: str, tmp_path: Path) -> None:
    plain, report = check_data(pets), check_data(FORMS[form](pets), out=str(tmp_path / "out"))
    assert plain.leaked == {"test": 1}
    for name in ("splits", "sizes", "modes", "leaked", "sound"):
        assert getattr(report, name) == getattr(plain, name), name
    kinds = [
        [(group.exact, group.leaks, [s.label for s in group.samples]) for group in own.duplicates]
        for own in (report, plain)
    ]
    assert kinds[0] == kinds[1]
    assert len(kinds[0]) == 2
    assert (tmp_path / "out/data_check.html").read_text().count("data:image/png;base64,") >= 4


def test_arrays_beside_files_are_compared_with_them(pets: Path) -> None:
    whole = ImageFolder(pets / "test")
    array = np.stack([np.array(image) for image, _ in whole])
    report = check_data({"train": ImageFolder(pets / "train"), "test": (array, np.array(["cat", "dog", "dog"]))})
    assert report.leaked == {"test": 1}
    assert [group.exact for group in report.leaks] == [True]
    assert report.sizes == check_data(pets).sizes
    grey = {"train": (array[..., 0], whole.targets), "test": (array[..., 0], whole.targets)}
    assert check_data(grey).leaked == {"test": 3}
    beside = check_data(
        {"train": ImageFolder(pets / "train"), "test": (array[..., 0], np.array(["cat", "dog", "dog"]))}
    )
    assert sum(beside.splits["test"].values()) == 3


def test_an_item_that_cannot_be_read_is_one_row(pets: Path) -> None:
    class Broken(ImageFolder):
        def __getitem__(self, index: int) -> Any:
            if index == 2:
                raise OSError("the disk is gone")
            return super().__getitem__(index)

    report = check_data({"train": Broken(pets / "train", transform=v2.ToImage())})
    (lost,) = report.unreadable
    assert (lost.split, lost.position, lost.reason) == ("train", 2, "the disk is gone")
    assert lost.path.endswith(ImageFolder(pets / "train").samples[2][0])
    assert sum(report.sizes.values()) == 6
    assert not report.sound


def test_columns_and_groups_have_the_same_names_in_both_places(pets: Path, tmp_path: Path, capsys: Any) -> None:
    paths = sorted((pets / "train").glob("*/*.png"))
    lines = [f"{path},{path.parent.name},{'ab'[i % 2]}" for i, path in enumerate(paths)]
    (tmp_path / "odd.csv").write_text("\n".join(["Bild,Art,Ort", *lines]))
    report = check_data(tmp_path / "odd.csv", columns={"image": "Bild", "label": "Art"}, group="Ort")
    assert report.groups["train"] == {"a": 4, "b": 3}
    words = ["data", "check", str(tmp_path / "odd.csv"), "--columns", "image=Bild,label=Art", "--group", "Ort"]
    assert main([*words, "--quiet"]) == 0
    assert capsys.readouterr().out.strip() == report.to_text()
    with pytest.raises(HoldfastError, match="columns cannot be used for"):
        check_data(pets, columns="image=Bild")
    with pytest.raises(HoldfastError, match="data must be a name, a path, .*got int"):
        check_data(3)
    with pytest.raises(TypeError, match="colums"):
        check_data(pets, colums="image=Bild")


def test_label_errors_of_objects_and_of_a_loaded_set(planted: tuple[Path, set[int]]) -> None:
    quick: dict[str, Any] = {"label_errors": True, "folds": 2, "epochs": 1, "device": "cpu"}
    with np.load(planted[0]) as file:
        arrays = {name: file[name] for name in file}
    found = [check_data(data, **quick) for data in (planted[0], arrays, load(planted[0]))]
    assert found[0].label_errors == found[2].label_errors
    first, second = ([s.sample.position for s in own.label_errors["train"].suspects] for own in found[:2])
    assert first == second
    assert len(found[1].leaks) == 2


def test_reading_is_shown(pets: Path) -> None:
    shown = Recorder()
    check_data(pets, progress=shown)
    check_data(by_hand(lambda place: ImageFolder(place, transform=v2.ToImage()))(pets), progress=shown)
    assert shown.stages == [("images", 10), ("images", 10)]
    assert shown.left == 0
