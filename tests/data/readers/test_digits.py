"""The digits are scikit-learn's; colour predicts the class in training, by exact shares, and never in test."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from sklearn.datasets import load_digits

from holdfast.data import ArraySplit, Dataset, aligned_groups, load
from holdfast.data.biased import COLOURS, balanced_groups, biased_groups
from holdfast.errors import HoldfastError

PALETTE = np.array(list(COLOURS.values()))


def images(data: Dataset, split: str) -> np.ndarray:
    own = getattr(data, split)
    assert isinstance(own, ArraySplit)
    return own.images.numpy()


def where(data: Dataset, split: str) -> list[int]:
    own = getattr(data, split)
    return [int(own.describe(i).partition("[")[2][:-1]) for i in range(len(own))]


def test_at_their_own_size_the_digits_are_scikit_learns() -> None:
    raw = load_digits()
    data = load("digits", image_size=8)
    for split in ("train", "test"):
        at = where(data, split)
        expected = np.rint(raw.images[at] * 255 / 16).astype(np.uint8)
        assert np.array_equal(images(data, split)[:, 0], expected)
        assert np.array_equal(getattr(data, split).labels, raw.target[at])
    assert sorted(where(data, "train") + where(data, "test")) == list(range(1797))


def test_a_third_of_every_class_is_test() -> None:
    data = load("digits")
    train, test = (torch.bincount(s.labels) for s in (data.train, data.test))
    assert data.shape == (1, 16, 16)
    assert ((test / (train + test) - 1 / 3).abs() < 0.005).all()


@pytest.mark.parametrize("conflict", [0.0, 0.01, 0.05, 0.337, 1.0])
def test_the_conflicting_share_is_exact_over_all_and_within_one_in_every_class(conflict: float) -> None:
    train = load("coloured-digits", conflict=conflict).train
    contrary = train.groups != train.labels
    assert int(contrary.sum()) == round(conflict * len(train))
    for label in range(10):
        own = contrary[train.labels == label]
        assert abs(int(own.sum()) - conflict * len(own)) < 1


def test_conflicting_colours_are_uniform_among_the_nine_others() -> None:
    labels = torch.arange(10).repeat(9000)
    colours = biased_groups(labels, 10, 1.0, seed=0, purpose="colours")
    offset = torch.bincount((colours - labels) % 10, minlength=10)
    assert offset[0] == 0
    chi_square = ((offset[1:] - 10_000) ** 2 / 10_000).sum()
    assert chi_square < 26.1  # 99.9 % of a chi-square with 8 degrees of freedom


def test_a_larger_share_only_adds_conflicts() -> None:
    few, many = (load("coloured-digits", conflict=c).train for c in (0.05, 0.3))
    contrary = few.groups != few.labels
    assert torch.equal(few.groups[contrary], many.groups[contrary])


def test_test_colours_say_nothing_about_the_class() -> None:
    test = load("coloured-digits").test
    assert test is not None
    table = torch.zeros(10, 10)
    table.index_put_((test.labels, test.groups), torch.ones(len(test)), accumulate=True)
    assert (table.max(1).values - table.min(1).values).max() <= 1
    assert table.sum(0).max() - table.sum(0).min() <= 1
    expected = table.sum(1, keepdim=True) * table.sum(0, keepdim=True) / len(test)
    assert ((table - expected) ** 2 / expected).sum() < 10  # 81 degrees of freedom: chance gives about 81


def test_balanced_colours_do_not_follow_the_order_of_samples() -> None:
    colours = balanced_groups(torch.zeros(1000, dtype=torch.int64), 10, seed=0, purpose="colours")
    assert (colours[1:] == (colours[:-1] + 1) % 10).float().mean() < 0.2


@pytest.mark.parametrize("split", ["train", "test"])
def test_every_digit_is_drawn_in_the_colour_of_its_group(split: str) -> None:
    data = load("coloured-digits", conflict=0.5)
    grey = images(load("digits"), split).astype(float)
    colours = PALETTE[getattr(data, split).groups.numpy()][:, :, None, None]
    assert np.abs(images(data, split) - grey * colours / 255).max() <= 0.5


def test_the_shortcut_is_the_colour_of_the_same_number() -> None:
    train = load("coloured-digits").train
    assert aligned_groups(train.labels, train.groups, 10).tolist() == list(range(10))
    assert load("coloured-digits").group_names == tuple(COLOURS)


def test_colours_are_well_separated() -> None:
    distance = np.linalg.norm(PALETTE[:, None] - PALETTE[None], axis=-1)
    assert distance[~np.eye(10, dtype=bool)].min() > 120


def test_the_seed_changes_the_split_and_the_colours_and_the_share_changes_neither_images_nor_test() -> None:
    base, again = load("coloured-digits"), load("coloured-digits")
    assert np.array_equal(images(base, "train"), images(again, "train"))
    assert np.array_equal(images(base, "test"), images(again, "test"))
    other_share = load("coloured-digits", conflict=0.4)
    assert where(other_share, "train") == where(base, "train")
    assert np.array_equal(images(other_share, "test"), images(base, "test"))
    other_seed = load("coloured-digits", data_seed=1)
    assert where(other_seed, "train") != where(base, "train")
    assert where(load("digits"), "train") == where(base, "train")


@pytest.mark.parametrize("conflict", [-0.1, 1.5, float("nan")])
def test_an_impossible_share_is_refused(conflict: float) -> None:
    with pytest.raises(HoldfastError, match=rf"conflict must be in \[0, 1\], got {conflict}"):
        load("coloured-digits", conflict=conflict)
