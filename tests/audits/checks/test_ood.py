"""The check on unknown inputs: right numbers for a model whose answers are known, and a reason where there are none."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from holdfast.audits.checks.ood import usual_scores
from holdfast.audits.checks.ood.ood_scores import ood_images
from holdfast.audits.subject import Subject
from holdfast.data import ArraySplit, Dataset
from holdfast.errors import HoldfastError
from holdfast.reports.run_files import RunFiles
from holdfast.reports.sections.ood import ood as section
from holdfast.types import Finding
from tests.audits.checks.run_checks import ood as unknown
from tests.conftest import make_data, make_split, same_weights
from tests.data.pictures import noise, write

SCORES = usual_scores()


class Rows(nn.Module):
    """Knows which row is bright: the mean of each row, then a linear head."""

    def __init__(self, side: int, classes: int) -> None:
        super().__init__()
        self.fc = nn.Linear(side, classes, bias=True)
        with torch.no_grad():
            self.fc.weight.zero_()
            self.fc.bias.zero_()
            for label in range(classes):
                self.fc.weight[label, (label * side) // classes] = 20.0

    def forward(self, x: Tensor) -> Tensor:
        logits: Tensor = self.fc(x.mean((1, 3)))
        return logits


def subject_of(data: Dataset, model: nn.Module | None = None) -> Subject:
    return Subject(model or Rows(8, 3), data, torch.device("cpu"), workers=0)


def value(findings: Sequence[Finding], name: str, **where: str) -> float:
    (found,) = [f.value for f in findings if f.name == name and f.where == where]
    assert found is not None
    return found


@pytest.fixture(scope="module")
def findings() -> tuple[Finding, ...]:
    return unknown(subject_of(make_data(300, 3, test=120)))


def test_every_score_on_every_kind_and_on_all(findings: tuple[Finding, ...]) -> None:
    for score in SCORES:
        for where in ({"score": score}, {"score": score, "ood": "noise"}, {"score": score, "ood": "digits"}):
            for name in ("ood_auroc", "ood_ap", "ood_fpr95", "ood_recall", "ood_false_alarm_rate"):
                assert 0 <= value(findings, name, **where) <= 1
    assert {f.check for f in findings} == {"ood"}


def test_images_without_a_bright_row_are_found(findings: tuple[Finding, ...]) -> None:
    """Noise has no bright row among dim ones: the logits cannot decide, the features lie elsewhere."""
    for score in ("msp", "knn", "mahalanobis"):
        assert value(findings, "ood_auroc", score=score, ood="noise") > 0.9


def test_test_images_given_as_foreign_are_not_told_apart() -> None:
    data = make_data(300, 3, test=400)
    same = unknown(subject_of(data), sets={"same": make_split(400, 3, seed=77).images})
    for score in SCORES:
        assert value(same, "ood_auroc", score=score, ood="same") == pytest.approx(0.5, abs=0.08)
        assert value(same, "ood_recall", score=score) == pytest.approx(0.05, abs=0.04)
        (found,) = [f for f in same if f.name == "ood_auroc" and f.where == {"score": score}]
        assert found.low is not None
        assert found.high is not None
        assert found.low < found.value < found.high  # type: ignore[operator]


def test_fewer_images_are_fewer_of_every_kind_and_say_the_same_within_their_intervals(
    findings: tuple[Finding, ...],
) -> None:
    few = unknown(subject_of(make_data(300, 3, test=120)), images=60)

    def counts(found: Sequence[Finding]) -> dict[str, int]:
        return {f.where.get("ood", "all"): f.n for f in found if f.name == "ood_auroc" and f.where["score"] == "msp"}

    # half of the test images set the threshold, the other half are judged beside the foreign ones
    digits = counts(findings)["digits"] - 60
    assert counts(findings) == {"noise": 60 + 256, "digits": 60 + digits, "all": 60 + 256 + digits}
    alarms, caught = ({f.n for f in findings if f.name == name and "ood" not in f.where}
                      for name in ("ood_false_alarm_rate", "ood_recall"))  # fmt: skip
    assert (alarms, caught) == ({60}, {256 + digits})
    half = math.ceil(digits / 2)
    assert counts(few) == {"noise": 30 + 128, "digits": 30 + half, "all": 30 + 128 + half}
    assert {f.settings["train_images"] for f in few} == {150}
    assert {f.settings["train_images"] for f in findings} == {300}
    for score in SCORES:
        (cut,) = [f for f in few if f.name == "ood_auroc" and f.where == {"score": score}]
        assert cut.low is not None
        assert cut.high is not None
        assert cut.low - 0.05 <= value(findings, "ood_auroc", score=score) <= cut.high + 0.05
    with pytest.raises(HoldfastError, match="images must be >= 1, got 0"):
        unknown(subject_of(make_data(30, 3, test=12)), images=0)


def test_foreign_images_take_the_models_size_and_colours() -> None:
    colour = Dataset(
        "c",
        ("a", "b"),
        train=make_split(20, 2, seed=1, side=12, channels=3),
        test=make_split(9, 2, seed=2, side=12, channels=3),
    )
    made = ood_images(subject_of(colour), None)
    assert {name: tuple(images.shape[1:]) for name, images in made.items()} == {
        "noise": (3, 12, 12),
        "digits": (3, 12, 12),
    }
    grey = ood_images(subject_of(make_data()), {"mine": torch.rand(5, 3, 20, 30)})["mine"]
    assert tuple(grey.shape) == (5, 1, 8, 8)
    own = make_data()
    digits = Dataset("coloured-digits", own.classes, train=own.train, test=own.test)
    assert set(ood_images(subject_of(digits), None)) == {"noise"}


def test_images_of_a_folder_need_no_classes(tmp_path: Path) -> None:
    for i in range(5):
        write(tmp_path / "odd" / f"{i}.png", noise(8, 8, seed=i, channels=1))
        for part in ("train", "test"):
            write(tmp_path / "parts" / part / f"{part}{i % 2}" / f"{i}.png", noise(8, 8, seed=i, channels=1))
    made = ood_images(subject_of(make_data()), {name: str(tmp_path / name) for name in ("odd", "parts")})
    assert [len(made[name]) for name in ("odd", "parts")] == [5, 5]


NUMBERS = tuple(map(str, range(10)))


@pytest.mark.parametrize(
    ("name", "classes", "known"),
    [
        ("mnist.npz", NUMBERS, True),
        ("svhn", NUMBERS, True),
        ("my-coloured-digits.npz", NUMBERS, True),
        ("data.npz", NUMBERS, True),
        ("emnist", (*NUMBERS, "a", "b"), True),
        ("scans", ("0 - zero", "1 - one", "2", "3", "4", "Five", "six", "seven", "eight", "9"), True),
        ("fashion_mnist.npz", NUMBERS, False),
        ("cifar10.npz", NUMBERS, False),
        ("data.npz", NUMBERS[:9], False),
        ("photos", ("cat", "dog"), False),
    ],
)
def test_digits_are_foreign_only_to_those_who_do_not_know_them(
    name: str, classes: tuple[str, ...], known: bool
) -> None:
    data = replace(make_data(classes=len(classes)), name=name, classes=classes)
    assert ("digits" in ood_images(subject_of(data), None)) != known


def test_the_model_is_given_back_and_nothing_is_random() -> None:
    data, model, before = make_data(90), Rows(8, 3).train(), Rows(8, 3)
    first, again = (unknown(subject_of(data, model)) for _ in range(2))
    assert first == again
    assert model.training
    assert same_weights(model, before)
    assert not model.fc._forward_pre_hooks


def test_findings_are_json_and_make_a_section(findings: tuple[Finding, ...]) -> None:
    again = tuple(Finding.from_json(json.loads(json.dumps(f.to_json()))) for f in findings)
    assert again == findings
    made = section([RunFiles("model", findings=again)])
    assert made is not None
    text = str(made)
    assert all(score in text for score in SCORES)
    assert "ROC" in text
    assert section([RunFiles("model")]) is None


class Hidden(nn.Module):
    """The same answers, by a layer that cannot be found, as in a compiled program."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = [Rows(8, 3)]

    def forward(self, x: Tensor) -> Tensor:
        return self.inner[0](x)  # type: ignore[no-any-return]


def test_a_model_without_a_head_has_the_scores_of_its_logits(findings: tuple[Finding, ...]) -> None:
    found = unknown(subject_of(make_data(300, 3, test=120), Hidden()))
    for score in ("msp", "max-logit", "energy"):
        assert value(found, "ood_auroc", score=score) == value(findings, "ood_auroc", score=score)
    (without,) = [f for f in found if f.name == "ood_auroc" and f.where == {"score": "knn"}]
    assert without.value is None
    assert "features" in without.evidence["reason"]


def test_one_class_leaves_only_what_needs_two_out() -> None:
    data = make_data(60, 3, test=60)
    one = ArraySplit(data.train.images, torch.zeros(60, dtype=torch.int64), data.train.groups)  # type: ignore[attr-defined]
    found = unknown(subject_of(Dataset("one", ("a", "b", "c"), train=one, test=data.test)))
    (missing,) = [f for f in found if f.name == "ood_auroc" and f.value is None]
    assert missing.where == {"score": "relative-mahalanobis"}
    assert "at least two classes" in missing.evidence["reason"]
    made = section([RunFiles("model", findings=found)])
    assert "at least two classes" in str(made)


def test_few_test_images_leave_the_threshold_out() -> None:
    found = unknown(subject_of(make_data(60, 3, test=20)), scores=("msp",))
    assert not [f for f in found if f.name == "ood_recall"]
    assert [f for f in found if f.name == "ood_auroc"]


def test_scores_that_learn_nothing_do_without_training_images() -> None:
    data = make_data(300, 3, test=120)
    alone = unknown(subject_of(replace(data, train=data.train.subset(torch.arange(0)))))
    usual = unknown(subject_of(data))
    for score in ("msp", "max-logit", "energy"):
        assert value(alone, "ood_auroc", score=score) == value(usual, "ood_auroc", score=score)
    (none,) = [f for f in alone if f.where == {"score": "knn"}]
    assert (none.value, none.evidence["reason"]) == (None, "knn learns from training images, and there are none")
