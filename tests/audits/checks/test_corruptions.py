"""The corruptions check: against the same corruptions applied by hand, and the published sets as they lie on disk."""

from __future__ import annotations

import base64
import io
import json
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from torch import Tensor, nn

from holdfast.audits.checks.corruptions import Corruptions
from holdfast.audits.checks.corruptions.corrupted_accuracy import (
    ALEXNET,
    EIGHT,
    GENERATED,
    KEPT,
    by_severity,
    official_set,
)
from holdfast.audits.sample_passes import decode
from holdfast.audits.subject import Subject
from holdfast.corruptions import corrupt, corruption_names
from holdfast.data import ArraySplit, Dataset
from holdfast.errors import HoldfastError
from holdfast.reports.findings_file import CheckRecord, FindingsFile
from holdfast.reports.html import render
from holdfast.reports.overview import overview
from holdfast.reports.renderings import junit, markdown
from holdfast.reports.run_files import RunFiles
from holdfast.rng import derive
from holdfast.types import Finding
from tests.audits.checks.from_logits import get
from tests.audits.checks.run_checks import corruptions
from tests.conftest import make_data, same_weights


class Rows(nn.Module):
    """Which third of the image is brightest."""

    def __init__(self, classes: int = 3) -> None:
        super().__init__()
        self.norm = nn.BatchNorm2d(1)
        self.classes = classes

    def forward(self, x: Tensor) -> Tensor:
        place = [(label * x.shape[2]) // self.classes for label in range(self.classes)]
        return 9 * x.mean((1, 3))[:, place]


def subject(n: int = 90, *, channels: int = 1, batch_size: int = 32, model: nn.Module | None = None) -> Subject:
    data = make_data(30, 3, channels=channels, test=n)
    return Subject(model or Rows(), data, torch.device("cpu"), batch_size=batch_size, workers=0)


@pytest.fixture(scope="module")
def findings() -> tuple[Finding, ...]:
    return corruptions(subject())


def test_what_is_measured_beyond_the_eight_is_shown() -> None:
    """ImageNet-C's and those by name: in the overview that console, Markdown and the page share, and in the section."""
    found = corruptions(subject(24), imagenet_c=True, severities=(1,), kinds=("fog", "frost"), strengths=(1.0,))
    file = FindingsFile(found, {"name": "rows"}, {}, checks=(CheckRecord("corruptions", "measured"),))
    rows = {row[2].text: row[3].text for row in overview(file).rows}
    for family in (GENERATED, "chosen"):
        value = get(found, "mce", family=family).value
        assert value is not None
        assert rows[f"mean corruption error, family {family}"] == f"{100 * value:.1f} %"
        assert f"mean corruption error, family {family}" in markdown([file]).replace("\\", "")
        assert f"Error by corruption, {family}" in render([RunFiles.of(file)])
        fog = {"family": family, "corruption": "fog"}
        kept = get(found, "corruption_accuracy", **fog, severity="1").value
        assert kept is not None
        assert get(found, "corruption_error", **fog).value == pytest.approx(1 - kept)
    assert "mce, family imagenet-c" in junit([file])


def test_the_budget_counts_all_that_was_asked_for() -> None:
    eight = Corruptions().passes("cpu")
    assert Corruptions(strengths=(1.0,)).passes("cpu") == eight / 2
    assert Corruptions(imagenet_c=True).passes("cpu") == eight * (16 + 95) / 16


def test_every_corruption_at_every_strength(findings: tuple[Finding, ...]) -> None:
    parts: list[tuple[str, dict[str, str]]] = [
        *(("corruption", {"corruption": name}) for name in EIGHT),
        ("mean_corruption", {}),
    ]
    for measure, part in parts:
        for strength in ("1", "2"):
            for kind in ("accuracy", "drop"):
                found = get(findings, f"{measure}_{kind}", **part, strength=strength)
                assert found.n == 90
                assert found.value is not None
                assert found.low is not None
                assert found.high is not None
                assert found.low <= found.value <= found.high
                assert found.low < found.high
    assert {f.check for f in findings} == {"corruptions"}
    json.dumps([f.to_json() for f in findings], allow_nan=False)


def test_verdicts_on_single_images_add_up_to_the_accuracies(findings: tuple[Finding, ...]) -> None:
    (evidence,) = [f.evidence["verdicts"] for f in findings if "verdicts" in f.evidence]
    said = dict(decode(evidence))
    assert sorted(said) == list(range(90))
    clean = get(findings, "corruption_accuracy", corruption="none").value
    assert sum(word != "wrong" for word in said.values()) / 90 == clean
    for name in EIGHT:
        lost = sum(name in word.removeprefix("wrong under ").split(", ") for word in said.values())
        drop = get(findings, "corruption_drop", corruption=name, strength="1").value
        assert drop is not None
        assert lost / 90 >= drop - 1e-12
        if clean == 1:
            assert lost / 90 == pytest.approx(drop)
    assert any(word.startswith("wrong under") for word in said.values())


@pytest.mark.parametrize("name", ["rotation", "gaussian-blur", "cutout", "jpeg-compression"])
def test_accuracy_is_that_of_images_corrupted_by_hand(findings: tuple[Finding, ...], name: str) -> None:
    whose = subject()
    x, y = whose.split.read(torch.arange(90)).float() / 255, whose.split.labels
    generator = torch.Generator().manual_seed(derive(0, f"corruptions/{name}"))
    right = []
    for start in range(0, 90, 32):
        moved = corrupt(x[start : start + 32], name, strength=1.0, generator=generator)
        right.append(Rows()(moved).argmax(1) == y[start : start + 32])
    expected = torch.cat(right).double().mean().item()
    assert get(findings, "corruption_accuracy", corruption=name, strength="1").value == pytest.approx(expected)
    clean = get(findings, "corruption_accuracy", corruption="none").value
    assert clean is not None
    assert get(findings, "corruption_drop", corruption=name, strength="1").value == pytest.approx(clean - expected)


def test_means_are_over_the_eight(findings: tuple[Finding, ...]) -> None:
    own = [get(findings, "corruption_accuracy", corruption=name, strength="2").value for name in EIGHT]
    mean = get(findings, "mean_corruption_accuracy", strength="2")
    assert mean.value == pytest.approx(np.mean([v for v in own if v is not None]))


def test_strong_rotation_hurts_and_weak_noise_does_not(findings: tuple[Finding, ...]) -> None:
    drop = get(findings, "corruption_drop", corruption="rotation", strength="2")
    assert drop.low is not None
    assert drop.low > 0.05
    assert drop.evidence["mcnemar_p"] < 0.01
    still = get(findings, "corruption_drop", corruption="gaussian", strength="1")
    assert still.value == 0
    assert still.low is not None
    assert still.low < 0


def test_a_part_of_the_images_is_the_same_part_every_time() -> None:
    whose = subject()
    some = corruptions(whose, images=20, strengths=(1.0,))
    assert get(some, "corruption_accuracy", corruption="cutout", strength="1").n == 20
    assert some == corruptions(subject(), images=20, strengths=(1.0,))


def test_the_model_is_given_back_as_it_was() -> None:
    model, before = Rows(), Rows()
    model.train()
    corruptions(subject(30, model=model), strengths=(1.0,))
    assert model.training
    assert model.norm.training
    assert same_weights(model, before)


def test_examples_are_pictures_of_one_image_that_the_model_knows(findings: tuple[Finding, ...]) -> None:
    (found,) = [f for f in findings if f.name == "examples"]
    examples = found.evidence["examples"]
    assert [(e["corruption"], e["strength"]) for e in examples[:3]] == [
        ("none", "0"), ("gaussian", "1"), ("gaussian", "2"),
    ]  # fmt: skip
    assert len(examples) == 1 + 2 * len(EIGHT)
    assert examples[0]["label"] == examples[0]["prediction"]
    sizes = {Image.open(io.BytesIO(base64.b64decode(e["png"]))).size for e in examples}
    assert sizes == {(8, 8)}


def test_nineteen_with_mean_corruption_error() -> None:
    found = corruptions(subject(24), strengths=(1.0,), imagenet_c=True, severities=(1, 5))
    errors = {}
    for name in corruption_names("imagenet-c"):
        own = [
            get(found, "corruption_accuracy", family=GENERATED, corruption=name, severity=s).value for s in ("1", "5")
        ]
        errors[name] = 1 - np.mean([v for v in own if v is not None])
        error = get(found, "corruption_error", family=GENERATED, corruption=name)
        assert error.value == pytest.approx(errors[name])
    every = get(found, "mce", family=GENERATED)
    assert every.value == pytest.approx(np.mean(list(errors.values())))
    published = get(found, "mce", family=GENERATED, over="without the extra four")
    assert published.value == pytest.approx(np.mean([errors[name] for name in KEPT]))
    assert len(KEPT) == 15


def test_error_relative_to_a_baseline_is_hendrycks_and_dietterichs() -> None:
    right = {("fog", str(s)): torch.arange(10) >= s for s in range(1, 6)}  # errors 1..5 of 10: mean 0.3
    right |= {("snow", str(s)): torch.arange(10) >= 6 for s in range(1, 6)}  # always 0.6
    found = by_severity(right, {}, family="f", baseline={"fog": 0.6, "snow": 0.8, "frost": 0.9})
    relative = [f for f in found if f.where.get("relative to") == "baseline"]
    assert [f.value for f in relative] == [pytest.approx((0.3 / 0.6 + 0.6 / 0.8) / 2)]
    assert relative[0].evidence["over"] == ["fog", "snow"]
    with pytest.raises(HoldfastError, match="none of the corruptions"):
        by_severity(right, {}, family="f", baseline={"rain": 0.5})


def test_alexnet_has_the_fifteen_and_is_the_unit() -> None:
    assert set(ALEXNET) == set(KEPT)
    assert np.mean(list(ALEXNET.values())) == pytest.approx(0.789, abs=1e-3)  # 78.9 % in the paper's table
    right = {(name, "1"): torch.arange(1000) >= round(1000 * error) for name, error in ALEXNET.items()}
    (found,) = [f for f in by_severity(right, {}, family="f", baseline=ALEXNET) if "relative to" in f.where]
    assert found.value == pytest.approx(1.0, abs=1e-3)


def test_mean_over_corruptions_is_as_uncertain_as_images_are_alike() -> None:
    """Twenty corruptions that each image passes or fails together are no more evidence than one."""
    same = torch.arange(100) < 70
    alike = by_severity({(f"c{i}", "1"): same for i in range(20)}, {}, family="f", baseline=None)
    once = by_severity({("c0", "1"): same}, {}, family="f", baseline=None)
    many, one = get(alike, "mce", family="f"), get(once, "mce", family="f")
    assert many.value == pytest.approx(0.3)
    assert (many.low, many.high) == pytest.approx((one.low, one.high))


def published(folder: Path, side: int = 8) -> tuple[np.ndarray, np.ndarray]:
    """A small CIFAR-10-C: two corruptions, four images, five severities; the higher, the darker."""
    generator = np.random.default_rng(0)
    images = generator.integers(0, 80, (20, side, side, 3), dtype=np.uint8)
    labels = np.tile(np.array([0, 1, 2, 0]), 5)
    for i, label in enumerate(labels):
        if i < 12:  # from severity 4 on nothing is to be seen
            images[i, (label * side) // 3] = 220
        else:
            images[i, (((label + 1) % 3) * side) // 3] = 220
    np.save(folder / "labels.npy", labels)
    np.save(folder / "jpeg_compression.npy", images)
    np.save(folder / "speckle_noise.npy", images)
    return images, labels


def test_official_sets_as_they_are(tmp_path: Path) -> None:
    published(tmp_path)
    found = official_set(subject(channels=3), tmp_path)
    family = tmp_path.name
    values = [
        get(found, "corruption_accuracy", family=family, corruption="jpeg", severity=str(s)).value for s in range(1, 6)
    ]
    assert values == [1.0, 1.0, 1.0, 0.0, 0.0]
    assert get(found, "mce", family=family).value == pytest.approx(0.4)
    assert get(found, "mce", family=family, over="without the extra four").evidence["over"] == ["jpeg"]
    everything = corruptions(subject(30, channels=3), strengths=(1.0,), official=tmp_path)
    assert get(everything, "corruption_error", family=family, corruption="speckle-noise").n == 4


def test_a_set_that_does_not_belong_is_refused(tmp_path: Path) -> None:
    published(tmp_path, side=12)
    with pytest.raises(HoldfastError, match=r"images of \(3, 12, 12\)"):
        official_set(subject(channels=3), tmp_path)
    published(tmp_path)
    np.save(tmp_path / "labels.npy", np.full(20, 7))
    with pytest.raises(HoldfastError, match="label 7"):
        official_set(subject(channels=3), tmp_path)


def test_bad_settings_and_images_of_another_kind() -> None:
    for strengths in ((), (0.0,), (float("inf"),)):
        with pytest.raises(HoldfastError, match="strengths must be"):
            corruptions(subject(9), strengths=strengths)
    with pytest.raises(HoldfastError, match="images must be >= 1, got 0"):
        corruptions(subject(9), images=0)
    deep = ArraySplit(torch.zeros(4, 5, 8, 8, dtype=torch.uint8), torch.arange(4) % 3, torch.full((4,), -1))
    data = Dataset("deep", ("a", "b", "c"), train=deep, test=deep)
    (found,) = corruptions(Subject(Rows(), data, torch.device("cpu"), workers=0))
    assert (found.value, found.n) == (None, 0)
    assert "5 channels" in found.evidence["reason"]
