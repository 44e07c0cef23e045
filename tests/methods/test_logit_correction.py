"""Logit Correction against plain computations of the paper's equations, and on data with a known shortcut."""

from __future__ import annotations

import math

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from holdfast.methods.logit_correction import FLOOR, group_partners
from tests.methods.made import draws, evaluate, make_batch, make_method

Y = torch.tensor([0, 0, 0, 1, 1, 2])
LOGITS_G = torch.tensor([
    [4.0, 0.0, 0.0], [3.0, 1.0, 0.0], [0.0, 2.0, 0.0], [0.0, 5.0, 1.0], [0.0, 0.5, 3.0], [1.0, 0.0, 2.0],
])  # fmt: skip


def fixed_biased() -> nn.Module:
    """A biased model that knows its logits: the images are their positions."""

    class Fixed(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.table = nn.Parameter(LOGITS_G.clone())

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.table[x.flatten().long()]

    return Fixed()


def positions() -> torch.Tensor:
    return torch.arange(6.0).view(6, 1, 1, 1)


class Line(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        flat = x.flatten(1)
        return torch.cat([flat, -flat, flat / 2], 1)


def plain_joint(memory: float, steps: int) -> list[list[float]]:
    """P(y, a) after so many steps on the same batch, in plain loops."""
    joint = [[1 / 9] * 3 for _ in range(3)]
    for _ in range(steps):
        seen = [[0.0] * 3 for _ in range(3)]
        for row, label in zip(LOGITS_G.tolist(), Y.tolist(), strict=True):
            total = sum(math.exp(v) for v in row)
            for a in range(3):
                seen[label][a] += math.exp(row[a]) / total / 6
        joint = [[memory * joint[y][a] + (1 - memory) * seen[y][a] for a in range(3)] for y in range(3)]
    return joint


@pytest.mark.parametrize("eta", [0.5, 1.0])
def test_a_step_is_the_corrected_cross_entropy_with_the_running_joint(eta: float) -> None:
    method, state = make_method(
        Y, make_model=fixed_biased, name="logit-correction", memory=0.7, eta=eta, mix=0.0, gce="textbook", q=0.6
    )
    for step in (1, 2):
        views = method.views(make_batch(positions(), Y), model=Line(), state=state, rng=draws())
        loss, _, _ = evaluate(method, Line(), views, state)
        joint = plain_joint(0.7, step)
        assert state.joint.flatten().tolist() == pytest.approx([v for row in joint for v in row], rel=1e-5)
        expected = 0.0
        for i, label in enumerate(Y.tolist()):
            f = [float(i), -float(i), i / 2]
            a = int(LOGITS_G[i].argmax())
            corrected = [f[k] + eta * math.log(joint[k][a] + FLOOR) for k in range(3)]
            expected += (math.log(sum(math.exp(v) for v in corrected)) - corrected[label]) / 6
        assert float(loss) == pytest.approx(expected, rel=1e-5)
    p = LOGITS_G.softmax(1).gather(1, Y[:, None])[:, 0]
    assert views.auxiliary_loss is not None
    assert float(views.auxiliary_loss.detach()) == pytest.approx(float(((1 - p**0.6) / 0.6).mean()), rel=1e-5)


def test_partners_are_of_the_class_and_of_its_minority_where_there_is_one() -> None:
    a = torch.tensor([0, 0, 1, 1, 2, 2])  # minority: image 2 of class 0, image 4 of class 1, none of class 2
    drawn = torch.stack([group_partners(Y, a, generator=draws(seed)["mix"]) for seed in range(40)])
    assert drawn[:, :3].unique().tolist() == [2]
    assert drawn[:, 3:5].unique().tolist() == [4]
    assert drawn[:, 5].unique().tolist() == [5]
    plain = torch.stack([group_partners(Y, Y, generator=draws(seed)["mix"]) for seed in range(60)])
    assert plain[:, 0].unique().tolist() == [0, 1, 2], "any of the class where it has no minority"


def test_group_mixup_mixes_image_and_prior_alike_and_rises_from_nothing() -> None:
    method, state = make_method(Y, make_model=fixed_biased, epochs=1, name="logit-correction", memory=0.0, ramp=1.0)
    first = method.views(make_batch(positions(), Y), model=Line(), state=state, rng=draws())
    kept = 1 - 2 * 0.5 * math.exp(-5)  # the smallest λ of the first step
    assert (first.items[0].x - positions()).abs().max() <= (1 - kept) * 2 + 1e-6
    later = method.views(make_batch(positions(), Y), model=Line(), state=state, rng=draws(3))  # the ramp is over
    x, a = later.items[0].x.flatten(), LOGITS_G.argmax(1)
    # images 3 and 4 are of class 1, and 4 is its minority: x = λ·3 + (1 − λ)·4
    lam = float(4 - x[3])
    assert 0 <= lam <= 0.5
    assert float(x[4]) == pytest.approx(4)
    assert float(x[0]) == pytest.approx((1 - lam) * 2, abs=1e-5)
    prior = lam * state.joint.T[a[3]] + (1 - lam) * state.joint.T[a[4]]
    torch.testing.assert_close(later.extra["correction"][3], (prior + FLOOR).log())


def test_the_correction_makes_a_classifier_of_the_balanced_distribution() -> None:
    """Where x shows no more than the attribute, the best corrected f is constant: the attribute says nothing of y then.

    With P(y, a) 0.45, 0.05 / 0.05, 0.45 plain cross-entropy learns log-odds of log 9 for each attribute; the corrected
    loss is least at 0, which is the answer for equally frequent groups.
    """
    joint = torch.tensor([[0.45, 0.05], [0.05, 0.45]], dtype=torch.float64)
    odds = torch.zeros(2, dtype=torch.float64, requires_grad=True)  # f(a) = (odds, −odds) / 2

    def risk(prior: torch.Tensor) -> torch.Tensor:
        logits = torch.stack([odds / 2, -odds / 2], 1) + prior
        return -(joint.T * F.log_softmax(logits, 1)).sum()

    for prior, expected in ((torch.zeros(2, 2), math.log(9)), (joint.T.log(), 0.0)):
        with torch.no_grad():
            odds.zero_()
        found = torch.optim.LBFGS([odds], max_iter=100, line_search_fn="strong_wolfe", tolerance_grad=1e-12)

        def closure(prior: torch.Tensor = prior, found: torch.optim.LBFGS = found) -> torch.Tensor:
            found.zero_grad()
            value = risk(prior)
            value.backward()  # type: ignore[no-untyped-call]
            return value

        found.step(closure)  # type: ignore[no-untyped-call]
        assert odds.tolist() == pytest.approx([expected, -expected], abs=1e-4)
