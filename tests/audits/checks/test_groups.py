"""The groups check: every number by hand, empty cells, several columns, and data without groups."""

from __future__ import annotations

import json

import pytest
import torch
from torch import Tensor

from holdfast.audits.checks.groups.group_accuracy import MOST_CELLS, Groups, by_column
from holdfast.audits.subject import Subject
from holdfast.errors import HoldfastError
from holdfast.metrics import proportion_interval
from holdfast.train.evaluate import Predictions
from holdfast.types import Finding
from tests.audits.checks.from_logits import get, one_hot, split, told
from tests.audits.checks.run_checks import groups

CELLS = {(0, 0): (40, 36), (0, 1): (10, 4), (1, 0): (20, 5), (1, 1): (30, 30)}
"""Samples of each class and group, and how many of them the model gets right; group 2 stays empty."""


def subject(**changes: Tensor) -> Subject:
    labels, ids, right = [], [], []
    for (label, group), (n, hits) in CELLS.items():
        labels += [label] * n
        ids += [group] * n
        right += [i < hits for i in range(n)]
    y, g = torch.tensor(labels), torch.tensor(ids)
    prediction = torch.where(torch.tensor(right), y, 1 - y)
    trained = changes.get("train", torch.tensor([0, 0, 1, 1, 1]).repeat_interleave(30))
    taught = changes.get("train_labels", torch.tensor([0, 0, 0, 1, 1]).repeat_interleave(30))
    train = split(taught, trained)
    test = split(y, changes.get("groups", g))
    return told(one_hot(prediction, 2), test, train=train, group_names=("land", "sea", "air"))


@pytest.fixture(scope="module")
def findings() -> tuple[Finding, ...]:
    return groups(subject())


def value(found: Finding) -> float:
    assert found.value is not None
    assert found.low is not None
    assert found.high is not None
    assert found.low <= found.value <= found.high
    assert found.low < found.high
    return found.value


def test_numbers_by_hand(findings: tuple[Finding, ...]) -> None:
    assert value(get(findings, "average_accuracy")) == 0.75
    assert value(get(findings, "bias_aligned_accuracy")) == pytest.approx(66 / 70)
    assert value(get(findings, "bias_conflicting_accuracy")) == pytest.approx(9 / 30)
    assert value(get(findings, "bias_gap")) == pytest.approx(66 / 70 - 0.3)
    assert value(get(findings, "harmonic_mean")) == pytest.approx(2 / (70 / 66 + 30 / 9))
    assert value(get(findings, "group_accuracy", group="land")) == pytest.approx(41 / 60)
    assert value(get(findings, "group_gap")) == pytest.approx(34 / 40 - 41 / 60)
    assert value(get(findings, "cell_gap")) == 0.75
    assert value(get(findings, "group_balanced_accuracy")) == pytest.approx((0.9 + 0.4 + 0.25 + 1) / 4)
    for (label, group), (n, hits) in CELLS.items():
        cell = get(findings, "group_accuracy", class_=f"c{label}", group=("land", "sea")[group])
        assert (value(cell), cell.n) == (hits / n, n)
    assert {f.check for f in findings} == {"groups"}


def test_worst_group_names_its_cell_and_is_what_training_calls_so(findings: tuple[Finding, ...]) -> None:
    worst = get(findings, "worst_group_accuracy")
    assert value(worst) == 0.25
    assert worst.n == 20
    assert worst.evidence["cell"] == {"class": "c1", "group": "land"}
    seen = subject().predictions
    assert worst.value == Predictions(seen.logits, seen.labels, seen.groups).worst_group


def test_empty_cells_are_shown(findings: tuple[Finding, ...]) -> None:
    for where in ({"group": "air"}, {"class_": "c0", "group": "air"}):
        empty = get(findings, "group_accuracy", **where)
        assert (empty.value, empty.n, empty.low, empty.high) == (None, 0, None, None)
    evidence = get(findings, "worst_group_accuracy").evidence
    assert (evidence["cells"], evidence["empty"]) == (4, 2)
    assert evidence["table"]["n"] == [[40, 10, 0], [20, 30, 0]]
    assert evidence["table"]["hits"] == [[36, 4, 0], [5, 30, 0]]


def test_unknown_groups_are_in_the_average_only() -> None:
    ids = subject().split.groups.clone()
    ids[:50] = -1  # all of class 0
    found = groups(subject(groups=ids))
    assert get(found, "average_accuracy").n == 100
    assert get(found, "bias_aligned_accuracy").n == 30
    assert get(found, "bias_conflicting_accuracy").n == 20
    assert get(found, "group_accuracy", class_="c0", group="land").n == 0
    assert value(get(found, "worst_group_accuracy")) == 0.25


def test_a_side_without_samples_has_no_gap() -> None:
    found = groups(subject(train=torch.tensor([2, 2, 2, 3, 3]).repeat_interleave(30)))
    assert get(found, "bias_aligned_accuracy").n == 0
    assert get(found, "bias_conflicting_accuracy").n == 100
    for name in ("bias_gap", "harmonic_mean"):
        nothing = get(found, name)
        assert (nothing.value, nothing.n) == (None, 0)


def test_training_without_groups_knows_no_shortcut() -> None:
    found = groups(subject(train=torch.full((150,), -1)))
    assert not [f for f in found if f.name.startswith("bias_") or f.name == "harmonic_mean"]
    assert value(get(found, "worst_group_accuracy")) == 0.25


def test_a_class_without_a_usual_group_is_on_neither_side_and_a_note_says_so() -> None:
    found = groups(subject(train=torch.tensor([0, 0, 0, 0, 1]).repeat_interleave(30)))  # class 1: half land, half sea
    aligned, conflicting = (get(found, f"bias_{side}_accuracy") for side in ("aligned", "conflicting"))
    assert (value(aligned), aligned.n) == (0.9, 40)
    assert (value(conflicting), conflicting.n) == (0.4, 10)
    for name in ("bias_aligned_accuracy", "bias_conflicting_accuracy", "harmonic_mean", "bias_gap"):
        evidence = get(found, name).evidence
        assert evidence["without_usual_group"] == ["c1"]
        assert "50 of 100, of the 1 of 2 classes that have a usual group" in evidence["note"]
    assert "note" not in get(groups(subject()), "bias_conflicting_accuracy").evidence


@pytest.mark.parametrize(
    "trained",
    [[0, 1, 0, 1], [0, 0, 1, 0, 0, 1], [2, 2]],
    ids=["evenly", "the same in both classes", "one group"],
)
def test_without_a_correlation_in_training_nothing_is_aligned_or_conflicting(trained: list[int]) -> None:
    taught = torch.tensor([0, 1]).repeat_interleave(15 * len(trained))
    whose = subject(train=torch.tensor(trained).repeat_interleave(30), train_labels=taught)
    found = groups(whose)
    for name in ("bias_aligned_accuracy", "bias_conflicting_accuracy", "harmonic_mean", "bias_gap"):
        nothing = get(found, name)
        assert (nothing.value, nothing.n) == (None, 0)
        assert "no class has a usual group in training" in nothing.evidence["reason"]
    assert whose.sides == {}
    assert value(get(found, "worst_group_accuracy")) == 0.25


def test_no_groups_is_said_and_not_measured() -> None:
    (found,) = groups(subject(groups=torch.full((100,), -1)))
    assert (found.name, found.value, found.n) == ("worst_group_accuracy", None, 0)
    assert "group column" in found.evidence["reason"]


def test_several_columns_are_told_apart() -> None:
    whose = subject()
    other = torch.arange(100) % 3
    columns = {"place": whose.split.groups, "site": other}
    found = groups(whose, columns=columns, names={"place": ("land", "sea")}, train={"place": whose.data.train.groups})
    assert value(get(found, "worst_group_accuracy", column="place")) == 0.25
    assert value(get(found, "bias_aligned_accuracy", column="place")) == pytest.approx(66 / 70)
    right = whose.predictions.correct
    for site in range(3):
        cell = get(found, "group_accuracy", column="site", site=str(site))
        assert value(cell) == pytest.approx(float(right[other == site].double().mean()))
    assert not [f for f in found if f.where.get("column") == "site" and f.name.startswith("bias_")]
    assert len([f for f in found if not f.where]) == 1  # the average, once
    with pytest.raises(HoldfastError, match="site.*shape.*100 test samples"):
        groups(whose, columns={"site": other[:5]})
    for taken in ("class", "bias", "column"):
        with pytest.raises(HoldfastError, match=f"cannot be called '{taken}'.*rename"):
            groups(whose, columns={taken: other})


def test_many_cells_are_evidence_and_not_findings() -> None:
    classes = MOST_CELLS
    labels = torch.arange(classes).repeat(2)
    found = groups(told(one_hot(labels, classes), split(labels, torch.arange(2 * classes) // classes)))
    assert len(found) < 20
    assert len(get(found, "worst_group_accuracy").evidence["table"]["n"]) == classes


def test_findings_are_json(findings: tuple[Finding, ...]) -> None:
    json.dumps([f.to_json() for f in findings], allow_nan=False)


def test_the_worst_group_drops_from_all_samples_with_an_interval_of_its_own(findings: tuple[Finding, ...]) -> None:
    below, worst = get(findings, "worst_group_drop"), get(findings, "worst_group_accuracy")
    assert value(below) == pytest.approx(0.75 - 0.25)
    assert below.n == 100
    low, high = proportion_interval(75, 100)
    assert worst.low is not None
    assert worst.high is not None
    assert (below.low, below.high) == pytest.approx((low - worst.high, high - worst.low))


@pytest.mark.parametrize("rates", [(0.8,) * 12, (0.9,) * 11 + (0.5,), (0.7, 0.8, 0.9) * 4])
def test_the_drop_holds_its_level_although_the_worst_was_picked(rates: tuple[float, ...]) -> None:
    """Drawn anew, the interval holds what the truly worst cell drops: picking the lowest of twelve must not fool it."""
    n, draws = 40, 200
    labels = torch.zeros(n * len(rates), dtype=torch.int64)
    ids = torch.arange(len(rates)).repeat_interleave(n)
    chance = torch.tensor(rates, dtype=torch.float64)[ids]
    truth = sum(rates) / len(rates) - min(rates)
    generator = torch.Generator().manual_seed(0)
    held = 0
    for _ in range(draws):
        wrong = torch.rand(len(labels), generator=generator, dtype=torch.float64) >= chance
        column = Groups("group", ids, tuple(str(i) for i in range(len(rates))))
        below = get(by_column(told(one_hot(wrong.long(), 2), split(labels, ids)), column), "worst_group_drop")
        assert below.low is not None
        assert below.high is not None
        held += below.low <= truth <= below.high
    assert held >= 0.95 * draws
