"""The functions behind the commands around detectors, on images as people have them: folders."""

from __future__ import annotations

import csv
import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from torch import Tensor
from vae_report.digits_anomalies import make_digits_anomalies

from holdfast.data import ArraySplit, load
from holdfast.data.anomalies import save_anomalies
from holdfast.data.unlabelled_images import open_unlabelled
from holdfast.detect import FittedDetector, describe, evaluate, predict, score
from holdfast.detect import fit as fit_detector
from holdfast.detect.scoring import summary_text
from holdfast.errors import HoldfastError
from holdfast.reports import html
from holdfast.reports.blocks import Table
from holdfast.reports.run_files import RunFiles
from holdfast.reports.sections.describe import describe as describe_section
from holdfast.reports.sections.ood import detect as detect_section
from holdfast.train import fit
from tests.detect.conftest import Recorder


def write(folder: Path, images: Tensor, *, mode: str = "L") -> Path:
    folder.mkdir(parents=True)
    for i, image in enumerate(images):
        Image.fromarray(image[0].numpy()).convert(mode).save(folder / f"{i:04d}.png")
    return folder


@pytest.fixture(scope="module")
def pictures(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("pictures")
    data = load("digits")
    train, test = data.train, data.test
    assert isinstance(train, ArraySplit)
    assert isinstance(test, ArraySplit)
    write(root / "normal" / "deep", train.images[train.labels < 5][:300])
    write(root / "known", test.images[test.labels < 5][:60])
    write(root / "new", test.images[test.labels >= 5][:40])
    write(root / "colour", test.images[:3], mode="RGB")
    (root / "empty").mkdir()
    return root


@pytest.fixture(scope="module")
def detector(pictures: Path) -> Path:
    out = pictures / "detector"
    sizes = {"epochs": 12, "encoder_epochs": 4, "lr": 3e-3, "batch_size": 50}
    scores = ("reconstruction", "mahalanobis")
    fit_detector(pictures / "normal", out=out, scores=scores, false_alarm_rate=0.1, device="cpu", **sizes)  # type: ignore[arg-type]
    return out


def rows(path: Path) -> list[dict[str, str]]:
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


@pytest.mark.slow
def test_a_score_a_flag_and_a_reason_per_image(detector: Path, pictures: Path, tmp_path: Path) -> None:
    found = {}
    for name in ("known", "new"):
        shown = Recorder()
        out = tmp_path / f"{name}.csv"
        summary = score(detector, pictures / name, out=out, device="cpu", batch_size=16, workers=0, progress=shown)
        own = rows(out)
        assert list(own[0]) == ["path", "score", "flag", "reason"]
        assert [Path(r["path"]).name for r in own] == [f"{i:04d}.png" for i in range(len(own))]
        assert shown.stages == [("score", -(-len(own) // 16))]
        assert len(own) == len(summary)
        assert summary.flagged == sum(int(r["flag"]) for r in own)
        assert all(bool(r["reason"]) == (r["flag"] == "1") for r in own)
        assert [float(r["score"]) for r in own] == pytest.approx(summary.scores.tolist(), rel=1e-5)
        found[name] = np.mean([float(r["score"]) for r in own])
    assert found["new"] > found["known"] + 0.5
    assert not [p for p in tmp_path.iterdir() if p.suffix != ".csv"]


def test_an_evaluation_with_its_report(detector: Path, pictures: Path, tmp_path: Path) -> None:
    found = evaluate(detector, pictures / "known", pictures / "new", out=tmp_path / "out", device="cpu", workers=0)
    values = {f.name: f for f in found if f.where == {"score": "fused"}}
    assert set(values) == {"auroc", "ap", "fpr95", "precision", "recall", "f1", "false_alarm_rate"}
    assert values["auroc"].value > 0.75  # type: ignore[operator]
    assert values["auroc"].low < values["auroc"].value < values["auroc"].high  # type: ignore[operator]
    confusion = values["auroc"].evidence["confusion"]
    assert confusion["true_positive"] + confusion["false_negative"] == 40
    flagged = confusion["true_positive"] + confusion["false_positive"]
    assert {name: f.n for name, f in values.items()} == {
        "auroc": 100, "ap": 100, "fpr95": 100, "f1": 100,
        "recall": 40, "false_alarm_rate": 60, "precision": flagged,
    }  # fmt: skip
    assert {f.where["score"] for f in found if f.where} == {"fused", "reconstruction", "mahalanobis"}
    misses = next(f for f in found if f.name == "misses").evidence["misses"]
    assert len(misses) == min(24, confusion["false_negative"])
    kept = json.loads((tmp_path / "out" / "findings.json").read_text())
    assert len(kept["findings"]) == len(found)
    assert (tmp_path / "out" / "report.html").exists()
    section = detect_section([RunFiles("detector", findings=found)])
    assert section is not None
    assert "mahalanobis" in str(section)
    assert "auroc" in summary_text(found)


def test_a_set_with_anomalies_brings_both_kinds(tmp_path: Path) -> None:
    made = make_digits_anomalies()
    path = save_anomalies(made, tmp_path)
    assert torch.equal(open_unlabelled(path).read(torch.arange(500)), made.unlabeled.images)
    assert len(open_unlabelled(path, split="labeled")) == 100
    assert len(open_unlabelled(path, split="test")) == 200
    fit_detector(path, out=tmp_path / "d", scores=("reconstruction",), epochs=3, lr=3e-3, batch_size=50, device="cpu")
    found = evaluate(tmp_path / "d", path, device="cpu", workers=0)
    confusion = next(f for f in found if f.name == "auroc").evidence["confusion"]
    assert sum(confusion.values()) == 280
    assert confusion["true_positive"] + confusion["false_negative"] == 80
    with pytest.raises(HoldfastError, match="brings no anomalies of its own"):
        evaluate(tmp_path / "d", tmp_path, device="cpu")
    with pytest.raises(HoldfastError, match="has no split 'val'; choose train, labeled or test"):
        open_unlabelled(path, split="val")


def test_the_page_takes_the_sections(detector: Path, pictures: Path, tmp_path: Path) -> None:
    """Every block of the three sections is one that the page can draw."""
    found = evaluate(detector, pictures / "known", pictures / "new", device="cpu", workers=0, resamples=20)
    mapped = describe(pictures / "known", out=tmp_path / "b", detector=detector, device="cpu")
    of_ood = [replace(f, check="ood", name=f"ood_{f.name}") for f in found]
    text = html.render([RunFiles("model", findings=(*found, *of_ood, *mapped))])
    for anchor in ('id="detect"', 'id="ood"', 'id="describe"', "data:image/png;base64"):
        assert anchor in text


@pytest.mark.slow
def test_the_map_of_a_set(detector: Path, pictures: Path, tmp_path: Path) -> None:
    found = describe("digits", out=tmp_path / "a", epochs=6, lr=3e-3, latent=4, device="cpu")
    values = {f.name: f.value for f in found}
    assert values["linear"] > 0.4  # type: ignore[operator]
    assert -1 <= values["silhouette"] <= 1  # type: ignore[operator]
    evidence = next(f for f in found if f.name == "map").evidence
    assert len(evidence["points"]) == len(evidence["labels"]) == 1198
    assert {name: len(strips) for name, strips in evidence["strips"].items()} == {
        "reconstructions": 2, "traversals": 4, "interpolations": 4
    }  # fmt: skip
    section = describe_section([RunFiles("map", findings=found)])
    assert section is not None
    assert str(section).count("<circle") == 1198
    plain = describe(pictures / "known", out=tmp_path / "b", detector=detector, device="cpu", projection="tsne")
    assert [f.name for f in plain] == ["map"]


class TestBadInput:
    def test_colour_to_a_grey_detector(self, detector: Path, pictures: Path, tmp_path: Path) -> None:
        with pytest.raises(HoldfastError, match=r"0000\.png is in colour, and grey images are needed"):
            score(detector, pictures / "colour", out=tmp_path / "x.csv", device="cpu", workers=0)
        assert not list(tmp_path.iterdir())

    def test_an_empty_folder(self, detector: Path, pictures: Path, tmp_path: Path) -> None:
        for call in (
            lambda: score(detector, pictures / "empty", out=tmp_path / "x.csv", device="cpu"),
            lambda: fit_detector(pictures / "empty", out=tmp_path / "d", device="cpu"),
        ):
            with pytest.raises(HoldfastError, match="empty holds no images"):
                call()

    def test_an_unreadable_picture(self, detector: Path, pictures: Path, tmp_path: Path) -> None:
        folder = write(tmp_path / "broken", load("digits").train.read(torch.arange(3)))
        (folder / "0001.png").write_bytes((folder / "0001.png").read_bytes()[:60])
        with pytest.raises(HoldfastError, match="0001.png"):
            score(detector, folder, out=tmp_path / "x.csv", device="cpu", workers=0)
        assert not (tmp_path / "x.csv").exists()

    def test_no_detector(self, pictures: Path, tmp_path: Path) -> None:
        with pytest.raises(HoldfastError, match="no detector in"):
            score(tmp_path, pictures / "new", out=tmp_path / "x.csv", device="cpu")

    def test_a_detector_is_not_written_over(self, detector: Path, pictures: Path) -> None:
        with pytest.raises(HoldfastError, match="holds a detector already"):
            fit_detector(pictures / "normal", out=detector, device="cpu")


@pytest.mark.slow
def test_a_run_carries_its_detector(pictures: Path, tmp_path: Path) -> None:
    """Label and confidence are the model's own; the flag is the detector's."""
    data = load("digits")
    run = tmp_path / "run"
    result = fit(data, epochs=4, lr=0.05, batch_size=50, device="cpu", out=run)
    predict(run, pictures / "known", out=tmp_path / "plain.csv", device="cpu", workers=0)
    assert {(r["ood_score"], r["ood"]) for r in rows(tmp_path / "plain.csv")} == {("", "")}
    fit_detector(pictures / "normal", run=run, scores=("energy", "mahalanobis"), device="cpu", false_alarm_rate=0.1)
    summary = predict(run, pictures / "known", out=tmp_path / "known.csv", device="cpu", workers=0)
    own = rows(tmp_path / "known.csv")
    assert len(summary) == len(own) == 60
    images = torch.stack([
        torch.from_numpy(np.array(Image.open(pictures / "known" / f"{i:04d}.png"))) for i in range(60)
    ])[:, None].float() / 255  # fmt: skip
    with torch.no_grad():
        confidence, label = result.model(images).softmax(1).max(1)
    assert [r["prediction"] for r in own] == [data.classes[i] for i in label.tolist()]
    assert [float(r["confidence"]) for r in own] == pytest.approx(confidence.tolist(), rel=1e-4)
    noise = tmp_path / "noise"
    write(noise, torch.randint(0, 256, (20, 1, 16, 16), generator=torch.Generator().manual_seed(0)).to(torch.uint8))
    anomalous = predict(run, noise, out=tmp_path / "noise.csv", device="cpu", workers=0)
    assert anomalous.ood is not None
    assert summary.ood is not None
    assert anomalous.ood.flagged / 20 > summary.ood.flagged / 60
    assert all(bool(r["reason"]) == (r["ood"] == "1") for r in rows(tmp_path / "noise.csv"))
    told = [float(r["ood_score"]) for r in rows(tmp_path / "noise.csv")]
    assert told == pytest.approx(anomalous.ood.scores.tolist(), rel=1e-5)
    with pytest.raises(HoldfastError, match="no detector in"):
        predict(run, noise, out=tmp_path / "x.csv", detector=tmp_path / "none", device="cpu")


def test_a_colour_model_answers_for_grey_pictures(tmp_path: Path) -> None:
    colour = load("coloured-digits")
    test = load("digits").test
    assert isinstance(test, ArraySplit)
    result = fit(colour, epochs=1, device="cpu", out=tmp_path / "run")
    write(tmp_path / "grey", test.images[:20])
    np.savez(tmp_path / "grey.npz", x_train=test.images[:20, 0].numpy())
    with torch.no_grad():
        confidence = result.model(test.images[:20].expand(-1, 3, -1, -1).float() / 255).softmax(1).max(1).values
    for data in (tmp_path / "grey", tmp_path / "grey.npz"):
        predict(tmp_path / "run", data, out=tmp_path / "answers.csv", device="cpu", workers=0)
        told = [float(r["confidence"]) for r in rows(tmp_path / "answers.csv")]
        assert told == pytest.approx(confidence.tolist(), rel=1e-4)


def test_pages_say_what_was_found(detector: Path, pictures: Path, tmp_path: Path) -> None:
    found = evaluate(detector, pictures / "known", pictures / "new", out=tmp_path / "e", device="cpu", workers=0,
                            resamples=20)  # fmt: skip
    page = (tmp_path / "e" / "report.html").read_text(encoding="utf-8")
    values = {f.name: f for f in found if f.where == {"score": "fused"}}
    assert f"detector: tells anomalies from normal images with an AUROC of {100 * values['auroc'].value:.1f}" in page  # type: ignore[operator]
    assert "nothing measured" not in page
    confusion = values["auroc"].evidence["confusion"]
    section = detect_section([RunFiles("detector", findings=found)])
    assert section is not None
    (table,) = (b for b in section.blocks if isinstance(b, Table) and b.caption.startswith("At the threshold"))
    assert [[c.text for c in row] for row in table.rows] == [
        ["normal", str(confusion["true_negative"]), str(confusion["false_positive"])],
        ["anomalous", str(confusion["false_negative"]), str(confusion["true_positive"])],
    ]
    assert "Distribution of fused" in str(section)
    describe("digits", out=tmp_path / "m", epochs=1, device="cpu")
    page = (tmp_path / "m" / "report.html").read_text(encoding="utf-8")
    assert "digits: from its code a linear probe tells the class of" in page
    assert page.count('class="gallery wide"') == 3
    describe(pictures / "known", out=tmp_path / "n", detector=detector, device="cpu")
    assert "known: a map of 60 images without labels" in (tmp_path / "n" / "report.html").read_text(encoding="utf-8")


def test_normal_data_may_be_of_one_class(tmp_path: Path) -> None:
    split = load("digits").train
    assert isinstance(split, ArraySplit)
    ones = split.images[split.labels == 1].numpy()
    np.savez(tmp_path / "ones.npz", x_train=ones, y_train=np.zeros(len(ones), int))
    path = tmp_path / "ones.npz"
    fitted = fit_detector(
        path, out=tmp_path / "d", scores=("mahalanobis",), encoder_epochs=1, held_out=0.4, device="cpu"
    )
    assert fitted.threshold.n > 0
    with pytest.raises(HoldfastError, match="a classifier needs at least two classes"):
        load(path)


def test_sets_of_another_size_are_brought_to_the_detectors(detector: Path, tmp_path: Path) -> None:
    """A set is treated as a folder is: its images are resized, never recoloured."""
    big = np.zeros((4, 40, 40), np.uint8)
    np.savez(tmp_path / "big.npz", x_train=big, y_train=np.arange(4) % 2, x_test=big, y_test=np.arange(4) % 2)
    assert len(score(detector, tmp_path / "big.npz", out=tmp_path / "x.csv", device="cpu", workers=0)) == 4
    colour = np.zeros((4, 3, 40, 40), np.uint8)
    np.savez(tmp_path / "c.npz", x_train=colour, y_train=np.arange(4) % 2, x_test=colour, y_test=np.arange(4) % 2)
    with pytest.raises(HoldfastError, match="is for grey images, and these are colour"):
        score(detector, tmp_path / "c.npz", out=tmp_path / "y.csv", device="cpu", workers=0)


def test_a_set_in_memory_is_called_by_its_name(tmp_path: Path) -> None:
    data = load("digits")
    few = replace(data, name="tens", train=data.train.subset(torch.arange(100)))
    describe(few, out=tmp_path / "m", epochs=1, projection="pca", device="cpu")
    assert json.loads((tmp_path / "m" / "findings.json").read_text())["data"] == {"name": "tens"}


def test_a_projection_that_cannot_be_is_refused_before_training(tmp_path: Path) -> None:
    said: list[str] = []
    with pytest.raises(HoldfastError, match="unknown projection 'map'"):
        describe("digits", out=tmp_path / "m", projection="map", device="cpu", note=said.append)
    assert said == []


def test_results_come_back_without_a_file(detector: Path, pictures: Path, tmp_path: Path) -> None:
    """What the commands write to files, a Python user gets as objects; nothing is written unasked."""
    before = sorted(pictures.rglob("*"))
    images = open_unlabelled(pictures / "normal").read(torch.arange(300))
    fitted = fit_detector(images, scores="reconstruction", epochs=1, device="cpu")
    assert len(score(fitted, pictures / "known", device="cpu", workers=0)) == 60
    kept = FittedDetector.load(detector)
    found = score(kept, pictures / "known", device="cpu", workers=0)
    score(detector, pictures / "known", out=tmp_path / "x.csv", device="cpu", workers=0)
    assert [r["reason"] for r in rows(tmp_path / "x.csv")] == list(found.reasons)
    assert describe(pictures / "known", detector=kept, device="cpu")[0].name == "map"
    run = tmp_path / "run"
    fit(load("digits"), epochs=1, device="cpu", out=run)
    plain = predict(run, pictures / "known", device="cpu", workers=0)
    assert (len(plain), len(plain.classes), plain.ood) == (60, 10, None)
    watched = predict(run, pictures / "known", detector=kept, device="cpu", workers=0)
    assert watched.ood is not None
    assert torch.equal(watched.ood.flags, found.flags)
    assert sorted(pictures.rglob("*")) == before


def test_predictions_of_a_training_in_memory_and_its_table(tmp_path: Path) -> None:
    """A result without a folder predicts as its model does; classes with commas in their names survive the table."""
    data = replace(load("digits"), classes=tuple(f"no. {i}, printed" for i in range(10)))
    result = fit(data, epochs=1, device="cpu")
    out, images = tmp_path / "p.csv", data.test
    assert images is not None
    found = predict(result, data, out=out, probabilities=True, device="cpu", workers=0)
    with torch.no_grad():
        wanted = result.model(images.read(torch.arange(len(images))).float() / 255).softmax(1)
    assert found.probabilities is not None
    assert torch.allclose(found.probabilities, wanted, atol=1e-6)
    assert torch.equal(found.labels, wanted.argmax(1))
    own = rows(out)
    assert list(own[0])[:6] == ["path", "prediction", "confidence", "ood_score", "ood", "reason"]
    assert list(own[0])[6:] == [f"prob_{name}" for name in data.classes]
    table = torch.tensor([[float(r[f"prob_{name}"]) for name in data.classes] for r in own])
    assert torch.equal(table, found.probabilities)
    assert [r["path"] for r in own] == list(found.paths) == found.columns()["path"]
    plain = predict(result, data, out=out, device="cpu", workers=0)  # its own old table is replaced
    assert plain.probabilities is None
    assert torch.equal(plain.labels, found.labels)
    assert torch.equal(plain.confidence, found.confidence)
    assert list(rows(out)[0]) == list(own[0])[:6] == list(plain.columns())


def test_a_module_is_refused_in_place_of_a_run_and_told_where_it_belongs() -> None:
    class Net(torch.nn.Module):
        pass

    told = r"predict needs a finished run or its folder, got a Net; .*holdfast\.audit.*holdfast\.fit"
    with pytest.raises(HoldfastError, match=told):
        predict(Net(), "digits", device="cpu", workers=0)  # type: ignore[arg-type]
