"""Clusters of the suspected samples, and what the ranking is judged on."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from holdfast.data import ArraySplit, Dataset
from holdfast.settings import TrainSettings
from holdfast.shortcuts.biased_models import BiasedModel
from holdfast.shortcuts.conflicting_samples import Shortcuts, k_means, rank


def test_k_means_sorts_by_size_and_takes_equal_points() -> None:
    points = torch.tensor([[0.0], [10.0], [10.1], [9.9], [0.1], [50.0]])
    assert k_means(points, 3, seed=0).tolist() == [1, 0, 0, 0, 1, 2]
    assert k_means(torch.zeros(4, 2), 3, seed=0).tolist() == [0, 0, 0, 0]


def ranked(cells: list[list[int]]) -> Shortcuts:
    """Scores of 0.9 for samples outside the group with their class's number, of 0.1 for the others."""
    counts = torch.tensor(cells)
    places = torch.arange(counts.numel()).repeat_interleave(counts.flatten())
    labels, groups = places // counts.shape[1], places % counts.shape[1]
    train = ArraySplit(torch.zeros(len(labels), 1, 4, 4, dtype=torch.uint8), labels, groups, "made")
    data = Dataset("made", tuple("abc"), train, group_names=("red", "green"))
    score = torch.where(groups == labels, 0.1, 0.9)
    model = BiasedModel(score, score, torch.eye(3)[labels], nn.Identity())
    return rank(TrainSettings(), data, (model,), None, resamples=5, seed=0)


def test_the_ranking_is_judged_on_classes_with_a_usual_group() -> None:
    """The third class is as often red as green: its samples are on neither side."""
    found = ranked([[90, 10], [10, 90], [50, 50]])
    assert found.precision is not None
    assert found.precision.n == 200
    assert found.average_precision == 1.0
    assert found.base_rate == pytest.approx(0.1)


def test_the_ranking_is_not_judged_where_no_class_has_a_usual_group() -> None:
    found = ranked([[50, 50], [50, 50], [50, 50]])
    assert found.precision is None
    assert found.base_rate is None
