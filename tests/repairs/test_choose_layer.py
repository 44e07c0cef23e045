"""How C, γ and λ are chosen: by groups where they are known, by the old layer's errors where not, never by training."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from holdfast.repairs.choose_layer import SMALL, StoredFeatures, cells_of_errors, fit_layer
from holdfast.repairs.last_layer import LinearHead, cells_of, fit_head, group_scores
from holdfast.settings.command_settings import RepairSettings
from tests.repairs.test_last_layer import spurious

QUICK = RepairSettings(repeats=2, folds=3, strengths=(0.01, 0.1, 1.0), gammas=(0.0, 2.0, 4.0, 6.0), pulls=(0.01, 0.1))


def stored(n: int, *, conflict: float, seed: int = 3, groups: bool = True) -> StoredFeatures:
    x, y, g = spurious(n, conflict=conflict, seed=seed)
    return StoredFeatures(x, FIRST(x), y, g if groups else torch.full_like(g, -1))


def biased_head() -> LinearHead:
    """The head of a model that was trained where the group goes with the class, but for one sample in fifty."""
    x, y, _ = spurious(2000, conflict=0.02, seed=7)
    return fit_head(x, y, num_classes=2, l2=0.3)


FIRST = biased_head()


def worst(head: LinearHead) -> float:
    x, y, g = spurious(4000, conflict=0.5, seed=11)
    return group_scores(head(x), y, cells_of(y, g))[0]


@pytest.mark.parametrize("groups", [True, False])
def test_afr_finds_the_weight_that_the_held_out_images_ask_for(groups: bool) -> None:
    """Held out as trained, the rare ones must count more; held out in balance they do already, and γ is 0: more would
    turn the shortcut round, which is what a fixed γ of 4 did."""
    rare = fit_layer("afr", stored(3000, conflict=0.02, groups=groups), FIRST, QUICK)
    even = fit_layer("afr", stored(800, conflict=0.5, groups=groups), FIRST, QUICK)
    assert rare.chosen["gamma"] >= 2
    assert even.chosen["gamma"] == 0
    assert worst(FIRST) < 0.3
    for made in (rare, even):
        assert worst(made.head) > worst(FIRST) + 0.4
        assert not made.notes
    fixed = fit_layer("afr", stored(800, conflict=0.5), FIRST, replace(QUICK, gammas=(6.0,), pulls=(0.01,)))
    assert worst(fixed.head) < worst(even.head) - 0.2


def test_dfr_chooses_a_strength_and_gains() -> None:
    made = fit_layer("dfr", stored(800, conflict=0.5), FIRST, QUICK)
    assert made.chosen["C"] in QUICK.strengths
    assert worst(made.head) > worst(FIRST) + 0.5


@pytest.mark.parametrize("by", ["dfr", "afr"])
def test_the_answers_that_calibrate_are_of_layers_that_did_not_see_the_image(by: str) -> None:
    """Labels at random cannot be told by features: only a layer that has seen them gets more than half right."""
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(120, 100, dtype=torch.float64, generator=generator)
    y, g = torch.randint(0, 2, (120,), generator=generator), torch.randint(0, 2, (120,), generator=generator)
    first = LinearHead(torch.zeros(2, 100, dtype=torch.float64), torch.zeros(2, dtype=torch.float64))
    own = replace(QUICK, strengths=(10.0,), gammas=(0.0,), pulls=(1e-4,))
    made = fit_layer(by, StoredFeatures(x, first(x), y, g), first, own)
    assert float((made.head(x).argmax(1) == y).double().mean()) > 0.9
    assert float((made.logits.argmax(1) == y).double().mean()) < 0.65


def test_too_few_to_choose_by_are_said() -> None:
    made = fit_layer("afr", stored(150, conflict=0.02), FIRST, QUICK)
    (note,) = made.notes
    assert (note.code, note.level) == ("few-to-choose-by", "warning")
    assert "the smallest pair of class and group has" in note.text
    assert not fit_layer("afr", stored(150, conflict=0.02), FIRST, replace(QUICK, gammas=(4.0,), pulls=(0.1,))).notes


def test_cells_of_errors_are_by_class_and_join_the_wrong_ones_where_they_are_few() -> None:
    labels = torch.tensor([0] * 20 + [1] * 20)
    wrong = torch.zeros(40, dtype=torch.bool)
    wrong[:SMALL] = wrong[20 : 20 + SMALL] = True
    assert torch.bincount(cells_of_errors(labels, wrong)).tolist() == [20 - SMALL, 20 - SMALL, SMALL, SMALL]
    wrong[0] = False
    assert torch.bincount(cells_of_errors(labels, wrong)).tolist() == [21 - SMALL, 20 - SMALL, 2 * SMALL - 1]
    assert torch.bincount(cells_of_errors(labels, torch.zeros_like(wrong))).tolist() == [20, 20]
