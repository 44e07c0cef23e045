"""The clean check against scikit-learn, and the names that others rely on."""

from __future__ import annotations

import json

import pytest
import torch
from sklearn import metrics as sk
from torch import Tensor

from holdfast.audits.checks.accuracy.clean_accuracy import PAIRS
from holdfast.audits.measuring import finite
from holdfast.types import Finding
from tests.audits.checks.from_logits import get, one_hot, split, told
from tests.audits.checks.run_checks import accuracy as clean
from tests.audits.checks.run_checks import groups as groups_check


def drawn(n: int = 500, classes: int = 8) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(0)
    labels = torch.randint(classes, (n,), generator=generator)
    logits = torch.randn(n, classes, generator=generator)
    logits[torch.arange(n), labels] += 1.5
    return logits, labels


@pytest.fixture(scope="module")
def findings() -> tuple[Finding, ...]:
    logits, labels = drawn()
    return clean(told(logits, split(labels)))


def test_numbers_as_scikit_learn(findings: tuple[Finding, ...]) -> None:
    logits, labels = drawn()
    p = logits.double().softmax(1).numpy()
    expected = {
        "accuracy": sk.accuracy_score(labels, p.argmax(1)),
        "top_5_accuracy": sk.top_k_accuracy_score(labels, p, k=5),
        "nll": sk.log_loss(labels, p),
        "brier": ((p - torch.eye(8)[labels].numpy()) ** 2).sum(1).mean(),
    }
    for name, value in expected.items():
        found = get(findings, name)
        assert found.value == pytest.approx(value, rel=1e-6)
        assert found.n == 500
        assert found.low is not None
        assert found.high is not None
        assert found.low < value < found.high


def test_scores_of_few_samples_have_no_negative_end() -> None:
    """The Brier score is bounded; the likelihood is not, and few samples do not show how bad it can get."""
    labels = torch.zeros(4, dtype=torch.int64)
    found = clean(told(torch.tensor([[9.0, 0.0], [9.0, 0.0], [9.0, 0.0], [0.0, 2.0]]), split(labels)))
    assert get(found, "brier").low == pytest.approx(0.0667, abs=1e-4)  # two more values of 0 and of 2
    assert [finite(get(found, "nll")).low, finite(get(found, "nll")).high] == [None, None]


def test_confusion_and_recall_as_scikit_learn(findings: tuple[Finding, ...]) -> None:
    logits, labels = drawn()
    matrix = sk.confusion_matrix(labels, logits.argmax(1))
    assert get(findings, "accuracy").evidence["confusion"] == {
        "classes": [f"c{i}" for i in range(8)],
        "matrix": matrix.tolist(),
    }
    for i in range(8):
        found = get(findings, "accuracy", class_=f"c{i}")
        assert found.value == pytest.approx(matrix[i, i] / matrix[i].sum())
        assert found.n == matrix[i].sum()


def test_many_classes_keep_the_largest_pairs() -> None:
    labels = torch.arange(60).repeat_interleave(30)
    prediction = labels.clone()
    prediction[:7] = 3  # seven of class 0 are taken for 3
    prediction[30:34] = 0  # and four of class 1 for 0
    for label in range(2, 40):
        prediction[label * 30] = 41
    confusion = get(clean(told(one_hot(prediction, 60), split(labels))), "accuracy").evidence["confusion"]
    assert confusion["errors"] == 7 + 4 + 38
    assert len(confusion["pairs"]) == PAIRS
    assert confusion["pairs"][:2] == [
        {"label": "c0", "prediction": "c3", "count": 7, "of": 30},
        {"label": "c1", "prediction": "c0", "count": 4, "of": 30},
    ]


def test_reliability_is_the_evidence_of_the_calibration_error(findings: tuple[Finding, ...]) -> None:
    for name in ("ece", "ece_adaptive"):
        found = get(findings, name)
        curve = found.evidence["reliability"]
        gaps = [n * abs(a - c) for n, a, c in zip(curve["n"], curve["accuracy"], curve["confidence"], strict=True)]
        assert found.value == pytest.approx(sum(gaps) / 500)
        assert sum(curve["n"]) == 500
        assert found.low is not None
        assert found.high is not None
        assert found.low <= found.value <= found.high
        assert found.evidence["chance"] < found.evidence["chance_high"]


def test_few_classes_have_no_top_five() -> None:
    logits, labels = drawn(classes=5)
    assert not [f for f in clean(told(logits, split(labels))) if f.name.startswith("top_")]


def test_both_sides_of_the_shortcut_and_their_harmonic_mean_have_intervals() -> None:
    labels = torch.tensor([0, 1]).repeat(50)
    groups = torch.tensor([0, 1, 1, 0]).repeat(25)
    prediction = torch.where(groups == labels, labels, 1 - labels)
    prediction[:20] = labels[:20]  # all aligned ones are right, and ten of the fifty others
    logits = one_hot(prediction, 2)
    train = split(torch.tensor([0, 1]).repeat(20), torch.tensor([0, 1]).repeat(20))
    findings = groups_check(told(logits, split(labels, groups), train=train, group_names=("red", "blue")))
    assert get(findings, "bias_aligned_accuracy").value == 1.0
    assert get(findings, "bias_conflicting_accuracy").value == pytest.approx(0.2)
    mean = get(findings, "harmonic_mean")
    assert mean.value == pytest.approx(2 * 0.2 / 1.2)
    assert mean.n == 100
    assert mean.low is not None
    assert mean.high is not None
    assert 0 < mean.low < 1 / 3 < mean.high < 1


def test_samples_of_unknown_group_are_on_neither_side_of_the_shortcut() -> None:
    """Nor are those of a class whose groups training does not know."""
    labels = torch.tensor([0, 0, 0, 1, 1, 1, 2, 2])
    groups = torch.tensor([0, 1, -1, 1, 0, -1, -1, 0])
    train = split(torch.tensor([0, 1, 2]).repeat(20), torch.tensor([0, 1, -1]).repeat(20))
    findings = groups_check(told(one_hot(labels, 3), split(labels, groups), train=train, group_names=("red", "blue")))
    assert [get(findings, f"bias_{side}_accuracy").n for side in ("aligned", "conflicting")] == [2, 2]
    assert get(findings, "average_accuracy").n == 8


def test_an_empty_class_is_reported_as_empty() -> None:
    findings = clean(told(one_hot(torch.zeros(4).long(), 3), split(torch.tensor([0, 0, 1, 1]))))
    empty = get(findings, "accuracy", class_="c2")
    assert (empty.value, empty.n, empty.low) == (None, 0, None)


def test_the_same_seed_gives_the_same_findings_and_they_are_json(findings: tuple[Finding, ...]) -> None:
    logits, labels = drawn()
    assert clean(told(logits, split(labels))) == findings
    json.dumps([f.to_json() for f in findings], allow_nan=False)
