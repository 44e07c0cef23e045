"""The shortcut finder: its ranking against known conflicts, its files, and what it refuses."""

from __future__ import annotations

import csv
import io
import json
import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from torch import Tensor, nn

from holdfast.data import ArraySplit, Dataset
from holdfast.data.splits import aligned_groups
from holdfast.detect.features import ClassifierExtractor, extract
from holdfast.errors import HoldfastError
from holdfast.reports import read_findings
from holdfast.reports.html import write_shortcuts_page
from holdfast.reports.sections.shortcuts import detection_limit, summary
from holdfast.settings import TrainSettings
from holdfast.shortcuts import Shortcuts, find_shortcuts
from holdfast.shortcuts.search import biased_training
from holdfast.shortcuts.shortcut_alarm import ShortcutTest, held_out_test
from holdfast.train import fit
from holdfast.types import Finding
from tests.conftest import Heard, make_data
from tests.reports.page import Page

CLASSES = 3
QUICK = {"epochs": 6, "seeds": 1, "lr": 3e-3, "batch_size": 32, "device": "cpu", "resamples": 20, "test": False}


def shortcut_data(n: int = 300, conflict: int = 12, *, groups: bool = True) -> Dataset:
    """A colour that gives the class away but for the last few samples, and a dim bar that always does."""

    def split(n: int, conflict: int, seed: int) -> ArraySplit:
        generator = torch.Generator().manual_seed(seed)
        labels = torch.arange(n) % CLASSES
        colour = labels.clone()
        colour[n - conflict :] = (labels[n - conflict :] + 1) % CLASSES
        images = torch.randint(0, 60, (n, 3, 8, 8), generator=generator, dtype=torch.uint8)
        for i, (label, c) in enumerate(zip(labels.tolist(), colour.tolist(), strict=True)):
            images[i, c] += 120
            images[i, :, 2 * label, :] += 30
        return ArraySplit(images, labels, colour if groups else torch.full((n,), -1), "made")

    names = ("red", "green", "blue") if groups else ()
    test = split(60, 40, 2)
    return Dataset("colours", tuple("abc"), split(n, conflict, 1), None, test, names)


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> tuple[Shortcuts, Path]:
    out = tmp_path_factory.mktemp("shortcuts")
    return find_shortcuts(shortcut_data(), out=out, **(QUICK | {"seeds": 2})), out  # type: ignore[arg-type]


@pytest.mark.slow
def test_conflicting_samples_come_first(found: tuple[Shortcuts, Path]) -> None:
    result, _ = found
    assert result.base_rate == pytest.approx(0.04)
    assert result.average_precision is not None
    assert result.average_precision > 0.95
    assert set(result.order[:12].tolist()) == set(range(288, 300))
    assert len(result.biased_models) == 2
    assert result.notes == ()


def test_the_biased_models_say_the_colours_class(found: tuple[Shortcuts, Path]) -> None:
    result, _ = found
    assert torch.equal(result.biased_prediction[288:], result.data.train.groups[288:])
    assert result.wrong[288:].min() > 0.5 > result.wrong[:288].mean()


def test_clusters_are_the_colours(found: tuple[Shortcuts, Path]) -> None:
    result, _ = found
    assert sorted(i for c in result.clusters for i in c.positions) == list(range(288, 300))
    assert {c.group for c in result.clusters} == {("red", 1.0), ("green", 1.0), ("blue", 1.0)}
    for cluster in result.clusters:
        assert cluster.biased_prediction == ({"red": "a", "green": "b", "blue": "c"}[cluster.group[0]], 1.0)  # type: ignore[index]
        scores = result.score[list(cluster.positions)]
        assert torch.equal(scores, scores.sort(descending=True).values)


def test_the_table(found: tuple[Shortcuts, Path]) -> None:
    result, out = found
    rows = list(csv.DictReader(io.StringIO((out / "shortcuts.csv").read_text())))
    assert [int(r["position"]) for r in rows] == result.order.tolist()
    assert [int(r["rank"]) for r in rows] == list(range(300))
    first = rows[0]
    i = int(first["position"])
    assert first["label"] == "abc"[i % 3]
    assert first["biased_prediction"] == "abc"[(i + 1) % 3]
    assert first["group"] == ("red", "green", "blue")[(i + 1) % 3]
    assert first["source"] == f"made[{i}]"
    assert float(first["score"]) == pytest.approx(float(result.score[i]), rel=1e-4)
    assert first["cluster"] != ""
    assert rows[-1]["cluster"] == ""


def test_the_findings_and_the_page(found: tuple[Shortcuts, Path]) -> None:
    result, out = found
    stored = read_findings(out / "shortcuts.json").findings
    assert [f.name for f in stored[:3]] == ["shortcut_p", "average_precision", "base_rate"]
    assert stored[1].evidence["lift"] == pytest.approx(result.average_precision / 0.04)  # type: ignore[operator]
    histogram = stored[0].evidence["histogram"]
    assert (sum(histogram["aligned"]), sum(histogram["conflicting"])) == (288, 12)
    text = (out / "shortcuts.html").read_text()
    page = Page(text)
    assert page.text("h1")[0] == "Ranked; whether there is a shortcut was not tested"
    clusters = page.tables["Clusters of suspected samples"]
    assert [row[1].text for row in clusters[1:]] == [str(len(c.positions)) for c in result.clusters]
    pictures = page.attributes("img")
    shown = sum(min(len(c.positions), 6) for c in result.clusters) + 12 + 6
    assert len(pictures) == 3 * shown  # each with the biased and the debiased model's map
    together = [part.partition("</ul>")[0].count("<img") for part in text.split('<li class="set">')[1:]]
    assert together == [3] * shown  # and no line break between them
    assert all((p["src"] or "").startswith("data:image/png;base64,") for p in pictures)
    assert "http" not in text.replace("http-equiv", "").replace("http://www.w3.org/2000/svg", "")


def test_clusters_that_contradict_their_labels_come_first_and_the_axis_has_a_name(tmp_path: Path) -> None:
    """The largest one is seen as the class that it is of; the next is seen as several others."""
    shares = {"own class": (("a", 1.0), ("a", 0.9), 40), "several": (("b", 1.0), ("c", 0.6), 30),
              "pure": (("c", 0.9), ("b", 1.0), 9), "larger": (("b", 0.3), ("a", 1.0), 12)}  # fmt: skip
    made = [
        Finding("shortcuts", "cluster_size", n, n, where={"cluster": name},
                evidence={"label": list(label), "biased_prediction": list(said)})
        for name, (label, said, n) in shares.items()
    ]  # fmt: skip
    histogram = {"all": [1, *[0] * 38, 1]}
    made.append(Finding("shortcuts", "shortcut_p", 0.5, 2, evidence={"histogram": histogram}))
    write_shortcuts_page(made, tmp_path / "page.html", name="x", measures={})
    page = Page((tmp_path / "page.html").read_text())
    rows = page.tables["Clusters of suspected samples"][1:]
    assert [row[0].text for row in rows] == ["larger", "pure", "several", "own class"]
    assert ">samples, %</text>" in (tmp_path / "page.html").read_text()


@pytest.mark.slow
def test_the_same_seed_gives_the_same_files(found: tuple[Shortcuts, Path], tmp_path: Path) -> None:
    _, out = found
    find_shortcuts(shortcut_data(), out=tmp_path, **(QUICK | {"seeds": 2}))  # type: ignore[arg-type]
    for name in ("shortcuts.csv", "shortcuts.json", "shortcuts.html"):
        assert (tmp_path / name).read_bytes() == (out / name).read_bytes()


@pytest.mark.slow
def test_without_groups_the_ranking_is_the_same(found: tuple[Shortcuts, Path]) -> None:
    result = find_shortcuts(shortcut_data(groups=False), **(QUICK | {"seeds": 2}))  # type: ignore[arg-type]
    assert torch.equal(result.score, found[0].score)
    assert result.average_precision is None
    assert [f.name for f in result.findings if not f.where] == ["shortcut_p", "examples"]
    assert all(c.group is None for c in result.clusters)


@pytest.mark.slow
def test_the_alarm_is_raised_for_the_colours(tmp_path: Path) -> None:
    once = QUICK | {"epochs": 1, "clusters": 1, "test": True}
    result = find_shortcuts(shortcut_data(), out=tmp_path, **once)  # type: ignore[arg-type]
    assert result.test is not None
    assert result.test.alarm
    stored = read_findings(tmp_path / "shortcuts.json").findings[0]
    assert (stored.value, stored.n) == (result.test.p, 300)
    assert (stored.evidence["conflicting"], stored.evidence["alarm"]) == (result.test.conflicting, True)
    assert stored.evidence["clear"] == result.test.clear
    assert detection_limit(result.findings) == ""  # what is found needs no limit
    assert Page((tmp_path / "shortcuts.html").read_text()).text("h1")[0].startswith("A shortcut is likely")


@pytest.mark.slow
def test_wrong_labels_are_not_called_a_shortcut() -> None:
    """The colour always gives the class away, and one label in ten is wrong."""
    data = shortcut_data(conflict=0, groups=False)
    labels = data.train.labels.clone()
    labels[::10] = (labels[::10] + 1 + torch.arange(30) % 2) % CLASSES
    wrong = replace(data, train=ArraySplit(data.train.read(torch.arange(300)), labels))
    training = biased_training(300, lr=3e-3, batch_size=32, epochs=6, device="cpu")
    test = held_out_test(training, wrong, device=torch.device("cpu"), progress=Heard())
    assert test.mistakes >= 20
    assert not test.alarm


def test_a_silent_alarm_says_what_would_be_found() -> None:
    evidence = {"alarm": False, "level": 0.05, "mistakes": 100, "conflicting": 20, "clear": 2, "found_from": 20}
    finding = Finding("shortcuts", "shortcut_p", 0.99, 300, evidence=evidence)
    assert "was usually found from about 20 bias-conflicting samples on; a faint one" in detection_limit([finding])
    assert detection_limit([replace(finding, evidence={})]) == ""


def test_group_labels_that_show_a_shortcut_are_not_denied() -> None:
    evidence = {"alarm": False, "level": 0.05, "mistakes": 80, "conflicting": 10, "clear": 3, "found_from": 20}
    test = Finding("shortcuts", "shortcut_p", 1.0, 800, evidence=evidence)
    rate = Finding("shortcuts", "base_rate", 0.026, 800)
    sure = Finding("shortcuts", "average_precision", 0.832, 800, 0.65, 0.95, evidence={"lift": 32.0})
    told = "The test shows no shortcut (p = 1), but the group labels do: bias-conflicting samples come first 32 times"
    assert summary([test, sure, rate]).startswith(told)
    for unsure in (replace(sure, low=0.03), replace(sure, low=None)):
        found_none = "The test found no shortcut (p = 1), which does not rule one out"
        assert summary([test, unsure, rate]).startswith(found_none)
    assert summary([test]).startswith("The test found no shortcut (p = 1), which does not rule one out")


class Colour(nn.Module):
    """A model that is biased by hand: it says the colour's class."""

    def __init__(self, classes: int = CLASSES) -> None:
        super().__init__()
        self.plane = nn.Identity()
        self.head = nn.Linear(3, classes, bias=False)
        nn.init.eye_(self.head.weight)
        self.head.weight.data *= 20

    def forward(self, x: Tensor) -> Tensor:
        logits: Tensor = self.head(self.plane(x).mean((2, 3)))
        return logits


def test_a_biased_model_of_ones_own_is_taken() -> None:
    model = Colour()
    result = find_shortcuts(shortcut_data(), model=model, device="cpu")
    assert result.average_precision == 1
    assert result.difficulty is None
    assert result.test is None
    from_test = [replace(result, test=ShortcutTest.of(*counts)) for counts in ((4, 9, 16), (1, 8, 40))]
    said = [re.search(": (.*); 12 of 300", repr(one))[1] for one in (result, *from_test)]  # type: ignore[index]
    assert said == ["not tested", "a shortcut is likely (p = 0.034)", "no sign of one (p = 1)"]
    assert (result.findings[0].name, result.findings[0].value) == ("shortcut_p", None)
    assert summary(result.findings).endswith("was not tested")
    with torch.no_grad():
        logits = model(shortcut_data().train.read(torch.arange(300)).float() / 255)
    expected = 1 - logits.softmax(1).gather(1, result.data.train.labels[:, None])[:, 0]
    torch.testing.assert_close(result.score, expected)
    assert list(result.findings[-1].evidence["top"][0]["looks"]) == ["biased"]


@pytest.mark.slow
def test_a_run_brings_its_network_and_its_model(tmp_path: Path) -> None:
    data = shortcut_data()
    fit(data, out=tmp_path / "run", epochs=1, device="cpu", method="lff", optimizer="adam", lr=3e-3, batch_size=32)
    result = find_shortcuts(tmp_path / "run", data=data, **QUICK)  # type: ignore[arg-type]
    assert list(result.findings[-1].evidence["top"][0]["looks"]) == ["biased", "debiased", "the run's own"]
    kept = find_shortcuts(tmp_path / "run", data=data, reuse=True, **QUICK)  # type: ignore[arg-type]
    again = fit(data, epochs=1, device="cpu", method="lff", optimizer="adam", lr=3e-3, batch_size=32)
    weights = again.state.biased.state_dict()  # type: ignore[union-attr, operator]
    assert all(torch.equal(v, weights[k]) for k, v in kept.biased_models[0].biased.state_dict().items())
    with pytest.raises(HoldfastError, match="image_size 16 is for data that is loaded here.*has settings of its own"):
        find_shortcuts(tmp_path / "run", image_size=16)
    with pytest.raises(HoldfastError, match="the classes differ; give its data with --data"):
        find_shortcuts(tmp_path / "run", data=make_data(channels=3))


@pytest.mark.slow
def test_what_was_in_memory_is_asked_for(tmp_path: Path) -> None:
    run, data = tmp_path / "run", shortcut_data()
    images = data.train.read(torch.arange(len(data.train)))
    ten = ArraySplit(images, torch.arange(len(images)) % 10)
    named = Dataset("colours", tuple("0123456789"), ten, test=ten)  # as those of the set that settings name by default
    fit(named, out=run, epochs=1, device="cpu", batch_size=64)
    with pytest.raises(HoldfastError, match="run was trained on a set in memory, colours; give it with --data"):
        find_shortcuts(run, **QUICK)  # type: ignore[arg-type]
    own = nn.Sequential(nn.Flatten(), nn.Linear(192, CLASSES))
    fit(data, model=own, method="lff", out=tmp_path / "own", epochs=1, device="cpu", batch_size=64)
    with pytest.raises(HoldfastError, match="own was trained with a module of its own, Sequential.* with --model"):
        find_shortcuts(tmp_path / "own", data=data, **QUICK)  # type: ignore[arg-type]
    with pytest.raises(HoldfastError, match="Sequential, and so was its biased model.*; drop --reuse"):
        find_shortcuts(tmp_path / "own", data=data, model="convnet", reuse=True, **QUICK)  # type: ignore[arg-type]
    result = find_shortcuts(tmp_path / "own", data=data, model="convnet", **QUICK)  # type: ignore[arg-type]
    assert result.settings.model.name == "convnet"
    with pytest.raises(HoldfastError, match="set in memory"):
        find_shortcuts(run, out=tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_a_run_without_a_biased_model_or_data_says_so(tmp_path: Path) -> None:
    run = tmp_path / "erm"
    data = shortcut_data()
    fit(data, out=run, epochs=1, device="cpu", batch_size=64)
    with pytest.raises(HoldfastError, match=r"kept no biased model \(its method is erm\); drop --reuse"):
        find_shortcuts(run, data=data, reuse=True)
    images = np.zeros((20, 8, 8), np.uint8)
    np.savez(tmp_path / "set.npz", x_train=images, y_train=np.arange(20) % 2, x_test=images, y_test=np.arange(20) % 2)
    fit(tmp_path / "set.npz", out=run, epochs=1, device="cpu", overwrite=True)
    (tmp_path / "set.npz").unlink()
    with pytest.raises(
        HoldfastError, match=r"the data of .*erm is not there: no such file.*; name its place with --data"
    ):
        find_shortcuts(run)


@pytest.mark.slow
def test_a_folder_of_pictures(tmp_path: Path) -> None:
    data = shortcut_data(90, 6)
    for split, own in (("train", data.train), ("test", data.test)):
        assert isinstance(own, ArraySplit)
        for i, image in enumerate(own.images):
            path = tmp_path / "photos" / split / "abc"[int(own.labels[i])] / f"{i:03}.png"
            path.parent.mkdir(parents=True, exist_ok=True)
            Image.fromarray(image.permute(1, 2, 0).numpy()).save(path)
    result = find_shortcuts(tmp_path / "photos", out=tmp_path / "out", **(QUICK | {"epochs": 12}))  # type: ignore[arg-type]
    rows = list(csv.DictReader(io.StringIO((tmp_path / "out" / "shortcuts.csv").read_text())))
    assert {Path(r["source"]).name for r in rows[:6]} == {f"{i:03}.png" for i in range(84, 90)}
    assert {r["group"] for r in rows} == {""}
    assert result.precision is None


def test_nothing_is_replaced_unasked(tmp_path: Path) -> None:
    (tmp_path / "shortcuts.csv").write_text("mine")
    with pytest.raises(HoldfastError, match=r"already holds shortcuts\.csv; replace with --overwrite"):
        find_shortcuts(shortcut_data(), out=tmp_path)
    assert (tmp_path / "shortcuts.csv").read_text() == "mine"


def one_class(data: Dataset) -> Dataset:
    return replace(data, train=data.train.subset((data.train.labels == 0).nonzero().flatten()))


def no_training(data: Dataset) -> Dataset:
    return replace(data, train=data.train.subset(torch.arange(0)))


@pytest.mark.parametrize(
    ("change", "given", "message"),
    [
        (one_class, {}, "colours has 1 class in training; a shortcut is between classes"),
        (no_training, {}, "colours has 0 training samples"),
        (None, {"epochs": 0}, "epochs must be >= 1, got 0"),
        (None, {"seeds": 0}, "seeds must be >= 1, got 0"),
        (None, {"clusters": 0}, "clusters must be >= 1, got 0"),
        (None, {"reuse": True}, "reuse needs the folder of a run"),
        (None, {"data": "digits"}, "data goes with a run"),
        (None, {"conflict": 0.0}, "conflict 0.0 is for data that is loaded here"),
        (None, {"image_size": 16}, "image_size 16 is for data that is loaded here"),
        (None, {"group": "gender"}, "group gender is for data that is loaded here"),
        (None, {"data_seed": 3}, "data_seed 3 is for data that is loaded here"),
        (None, {"model": "convnett"}, "unknown model 'convnett'"),
        (None, {"model": Colour(classes=2)}, r"outputs of shape \(2,\) per image, and colours has 3 classes"),
    ],
)
def test_bad_input(change: object, given: dict[str, object], message: str) -> None:
    data = shortcut_data() if change is None else change(shortcut_data())  # type: ignore[operator]
    with pytest.raises(HoldfastError, match=message):
        find_shortcuts(data, device="cpu", **given)  # type: ignore[arg-type]


def test_unknown_data() -> None:
    with pytest.raises(HoldfastError, match="unknown data set 'colored-digits'; did you mean 'coloured-digits'"):
        find_shortcuts("colored-digits")


def test_data_that_is_not_simple_is_pointed_out() -> None:
    data = make_data(60)
    noise = torch.randint(0, 255, data.train.shape, dtype=torch.uint8, generator=torch.Generator().manual_seed(0))
    blank = replace(data, train=ArraySplit(noise.repeat(60, 1, 1, 1), data.train.labels, data.train.groups))
    heard = Heard()
    result = find_shortcuts(blank, progress=heard, **QUICK)  # type: ignore[arg-type]
    assert any("there may be no simple shortcut" in note.text for note in result.notes)
    assert str(result.notes[0]) in heard.notes


def test_features_are_the_heads_input() -> None:
    data = shortcut_data()
    seen = extract(ClassifierExtractor(Colour()), data.train.subset(torch.tensor([5, 290]))).features
    torch.testing.assert_close(seen, data.train.images[[5, 290]].float().div(255).mean((2, 3)))  # type: ignore[attr-defined]


def test_settings_of_the_training_are_recorded(found: tuple[Shortcuts, Path]) -> None:
    result, out = found
    assert isinstance(result.settings, TrainSettings)
    stored = json.loads((out / "shortcuts.json").read_text())["findings"][0]["settings"]
    assert (stored["model"], stored["biased models"], stored["epochs"]) == ("convnet", 2, 6)
    usual = aligned_groups(result.data.train.labels, result.data.train.groups, CLASSES)
    assert usual.tolist() == [0, 1, 2]
