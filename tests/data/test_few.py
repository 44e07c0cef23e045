"""Few labels of a set: chosen evenly, the others never seen."""

from __future__ import annotations

import pytest
import torch

from holdfast.data import load
from holdfast.data.unlabelled_images import choose_labels, few_labels
from holdfast.errors import HoldfastError


def test_labels_are_chosen_evenly_and_by_the_seed() -> None:
    labels = load("digits").train.labels
    chosen = choose_labels(labels, 105, 10, seed=0)
    counts = torch.bincount(labels[chosen])
    assert set(counts.tolist()) == {10, 11}
    assert torch.equal(chosen, choose_labels(labels, 105, 10, seed=0))
    assert not torch.equal(chosen, choose_labels(labels, 105, 10, seed=1))
    assert set(choose_labels(labels, 50, 10, seed=0).tolist()) < set(chosen.tolist())


def test_a_small_class_gives_all_it_has() -> None:
    labels = torch.tensor([0] * 50 + [1] * 3)
    assert torch.bincount(labels[choose_labels(labels, 20, 2, seed=0)]).tolist() == [17, 3]


def test_the_rest_is_every_other_training_image() -> None:
    whole = load("digits")
    made = few_labels(whole, 50, seed=3)
    assert made.unlabeled is not None
    assert (len(made.train), len(made.unlabeled)) == (50, len(whole.train) - 50)
    both = torch.cat([s.read(torch.arange(len(s))) for s in (made.train, made.unlabeled)])
    every = whole.train.read(torch.arange(len(whole.train)))
    assert sorted(map(bytes, both.flatten(1).numpy())) == sorted(map(bytes, every.flatten(1).numpy()))
    assert str(made.notes[-1]) == f"50 labels, {len(whole.train) - 50} images without"
    assert few_labels(whole, None).unlabeled is None


def test_other_pictures_may_serve() -> None:
    made = few_labels(load("digits"), None, unlabeled="digits")
    assert made.unlabeled is not None
    assert len(made.train) == len(made.unlabeled) == 1198


def test_bad_input_is_refused() -> None:
    data = load("digits")
    for labels in (9, 1199):
        with pytest.raises(HoldfastError, match=f"labels must be in 10..1198 .*, got {labels}"):
            few_labels(data, labels)
    with pytest.raises(HoldfastError, match="keep their label, so there is no rest"):
        few_labels(data, None, unlabeled="rest")
    with pytest.raises(HoldfastError, match=r"unlabelled images have shape \(C, H, W\) \(3, 16, 16\) and those"):
        few_labels(data, 20, unlabeled="coloured-digits")
