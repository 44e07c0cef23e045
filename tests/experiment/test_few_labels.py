"""Few labels of a set: chosen evenly, the others never seen."""

from __future__ import annotations

import pytest
import torch

from holdfast.data import load
from holdfast.errors import HoldfastError
from holdfast.experiment.few_labels import choose, few_labels


def test_labels_are_chosen_evenly_and_by_the_seed() -> None:
    labels = load("digits").train.labels
    chosen = choose(labels, 105, 10, seed=0)
    counts = torch.bincount(labels[chosen])
    assert set(counts.tolist()) == {10, 11}
    assert torch.equal(chosen, choose(labels, 105, 10, seed=0))
    assert not torch.equal(chosen, choose(labels, 105, 10, seed=1))
    assert set(choose(labels, 50, 10, seed=0).tolist()) < set(chosen.tolist())


def test_a_small_class_gives_all_it_has() -> None:
    labels = torch.tensor([0] * 50 + [1] * 3)
    assert torch.bincount(labels[choose(labels, 20, 2, seed=0)]).tolist() == [17, 3]


@pytest.mark.parametrize("way", ["frozen", "supervised"])
def test_it_learns_from_few(way: str) -> None:
    result = few_labels(
        "digits", labels=200, way=way, epochs=12, pretrain_epochs=4, lr=3e-3, batch_size=20, device="cpu"
    )
    assert result.finding.value > 0.5  # type: ignore[operator]
    assert result.finding.low < result.finding.value < result.finding.high  # type: ignore[operator]
    assert result.finding.settings == {"way": way, "labels": 200, "unlabelled": 998, "seed": 0}


def test_bad_input_is_refused() -> None:
    with pytest.raises(HoldfastError, match="labels must be in 10..1198, got 9"):
        few_labels("digits", labels=9, device="cpu")
    with pytest.raises(HoldfastError, match="unknown way 'fixmach'"):
        few_labels("digits", labels=20, way="fixmach", device="cpu")
