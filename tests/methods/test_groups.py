"""Methods that know the groups: their weights against the formulas of their papers."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from holdfast.errors import HoldfastError
from tests.methods.made import draws, evaluate, make_batch, make_method

LABELS = torch.tensor([0, 0, 0, 0, 1, 1, 1, 1, 1, 1])
GROUPS = torch.tensor([0, 0, 0, 1, 0, 1, 1, 1, 1, 1])
CELLS = [[0, 1, 2], [3], [4], [5, 6, 7, 8, 9]]


def problem() -> tuple[nn.Module, Tensor]:
    torch.manual_seed(0)
    return nn.Linear(4, 2), torch.randn(10, 4)


def test_group_dro_follows_its_algorithm() -> None:
    """Sagawa et al., Algorithm 1, as their code does it: weights grow by the losses of now, and then count them."""
    model, x = problem()
    method, state = make_method(LABELS, GROUPS, classes=2, name="group-dro", rate=0.5)
    weights = [0.25] * 4
    for _ in range(3):
        views = method.views(make_batch(x, LABELS), model=model, state=state, rng=draws())
        loss, _, weighed = evaluate(method, model, views, state)
        losses = F.cross_entropy(model(x), LABELS, reduction="none")
        means = [losses[cell].mean() for cell in CELLS]
        grown = [w * torch.exp(0.5 * m.detach()) for w, m in zip(weights, means, strict=True)]
        weights = [float(w / sum(grown)) for w in grown]
        expected = sum(w * m for w, m in zip(weights, means, strict=True))
        torch.testing.assert_close(loss, expected)
        for own, theirs in zip(*(torch.autograd.grad(v, model.parameters()) for v in (loss, expected)), strict=True):
            torch.testing.assert_close(own, theirs)
        again, *_ = evaluate(
            method, model, weighed, state
        )  # an ascent evaluates the loss twice and moves the weights once
        torch.testing.assert_close(again, expected)
        with torch.no_grad():
            model.weight += 0.1


def test_a_group_that_is_not_in_the_batch_keeps_its_share_of_the_others() -> None:
    model, x = problem()
    method, state = make_method(LABELS, GROUPS, classes=2, name="group-dro", rate=0.5)
    first = torch.arange(4)
    views = method.views(make_batch(x[first], LABELS[first]), model=model, state=state, rng=draws())
    evaluate(method, model, views, state)
    shares = state.shares.tolist()
    assert shares[2] == pytest.approx(shares[3])
    assert sum(shares) == pytest.approx(1)
    assert min(shares[0], shares[1]) > shares[2]


@pytest.mark.parametrize(("by", "cells"), [("class", [list(range(4)), list(range(4, 10))]), ("group", CELLS)])
def test_reweighting_is_the_mean_over_cells(by: str, cells: list[list[int]]) -> None:
    model, x = problem()
    method, state = make_method(LABELS, GROUPS, classes=2, name="reweight", by=by)
    loss, *_ = evaluate(
        method, model, method.views(make_batch(x, LABELS), model=model, state=state, rng=draws()), state
    )
    losses = F.cross_entropy(model(x), LABELS, reduction="none")
    torch.testing.assert_close(loss, torch.stack([losses[cell].mean() for cell in cells]).mean())


def test_a_cell_without_samples_counts_for_nothing() -> None:
    model, x = problem()
    groups = GROUPS.clone()
    groups[3] = 0  # nobody is of class 0 and group 1
    method, state = make_method(LABELS, groups, classes=2, name="reweight", by="group")
    loss, *_ = evaluate(
        method, model, method.views(make_batch(x, LABELS), model=model, state=state, rng=draws()), state
    )
    losses = F.cross_entropy(model(x), LABELS, reduction="none")
    torch.testing.assert_close(loss, torch.stack([losses[:4].mean(), losses[4], losses[5:].mean()]).mean())


@pytest.mark.parametrize("settings", [{"name": "group-dro"}, {"name": "reweight", "by": "group"}])
def test_a_sample_without_a_group_is_refused(settings: dict[str, str]) -> None:
    groups = GROUPS.clone()
    groups[:2] = -1
    for unknown, remedy in (
        (groups, "2 of 10 have none; fill in theirs,"),
        (-torch.ones_like(groups), "10 of 10 have none; give the data a group column,"),
    ):
        with pytest.raises(HoldfastError, match=f"{settings['name']} needs the group of every .*{remedy}"):
            make_method(LABELS, unknown, classes=2, **settings)
