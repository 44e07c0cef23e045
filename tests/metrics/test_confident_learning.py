"""Confident learning: the paper's equations by hand, the estimate of the noise, and the rules on simulated labels."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from holdfast.errors import HoldfastError
from holdfast.metrics import confident_joint, estimated_joint, find_label_errors
from holdfast.metrics.confident_learning import LEAST_OUTER


def by_definition(labels: list[int], p: list[list[float]]) -> list[list[int]]:
    """Equation 1, sample by sample."""
    k = len(p[0])
    t = [sum(row[j] for row, y in zip(p, labels, strict=True) if y == j) / max(labels.count(j), 1) for j in range(k)]
    counts = [[0] * k for _ in range(k)]
    for row, y in zip(p, labels, strict=True):
        over = [j for j in range(k) if labels.count(j) and row[j] >= t[j]]
        if over:
            counts[y][max(over, key=lambda j: row[j])] += 1
    return counts


def simulated(n: int, noise: float, seed: int, sharpness: float = 4.0) -> tuple[Tensor, Tensor, Tensor]:
    """(given labels, true labels, probabilities): classes of a well calibrated model, labels flipped at random."""
    generator = torch.Generator().manual_seed(seed)
    logits = sharpness * torch.randn(n, 5, generator=generator, dtype=torch.float64)
    p = logits.softmax(1)
    true = torch.multinomial(p, 1, generator=generator)[:, 0]
    wrong = torch.rand(n, generator=generator) < noise
    given = torch.where(wrong, (true + torch.randint(1, 5, (n,), generator=generator)) % 5, true)
    return given, true, p


@pytest.mark.parametrize("seed", range(3))
def test_the_confident_joint_is_the_papers(seed: int) -> None:
    given, _, p = simulated(200, 0.2, seed)
    counted, true = confident_joint(given, p)
    assert counted.tolist() == by_definition(given.tolist(), p.tolist())
    assert int((true >= 0).sum()) == int(counted.sum())


def test_the_estimated_joint_has_the_shares_of_the_given_labels() -> None:
    given, _, p = simulated(2000, 0.1, 0)
    joint = estimated_joint(confident_joint(given, p)[0], given)
    assert torch.allclose(joint.sum(1), torch.bincount(given, minlength=5).double() / 2000)
    assert float(joint.sum()) == pytest.approx(1)


@pytest.mark.parametrize("noise", [0.0, 0.05, 0.2])
def test_the_share_of_wrong_labels_is_estimated(noise: float) -> None:
    given, _, p = simulated(5000, noise, 1, sharpness=40)  # nearly certain predictions
    assert find_label_errors(given, p).noise == pytest.approx(noise, abs=0.02)


@pytest.mark.parametrize("noise", [0.0, 0.05, 0.2])
@pytest.mark.parametrize("overconfident", [1.0, 2.5])
def test_a_models_own_errors_are_not_taken_for_wrong_labels(noise: float, overconfident: float) -> None:
    """A model that is right for about 80 % of the samples, and says so or is too sure of itself."""
    given, true, p = simulated(3000, noise, 5, sharpness=4.0)
    assert float((p.argmax(1) == true).double().mean()) == pytest.approx(0.8, abs=0.05)
    said = (overconfident * p.log()).softmax(1)
    found, wrong = find_label_errors(given, said), given != true
    assert found.noise == pytest.approx(noise, abs=0.02)
    counted = find_label_errors(given, said, rule="both")
    assert len(counted.flagged) > 1.2 * len(found.flagged)
    if noise:  # the precision is what was said at least, and better than that of the counts
        precision = float(wrong[found.flagged].double().mean())
        assert found.least_precision is not None
        assert precision - 0.3 < found.least_precision <= precision
        assert precision > float(wrong[counted.flagged].double().mean()) + 0.1
        chance = found.wrong.topk(int(wrong.sum())).indices
        assert float(wrong[chance].double().mean()) > 2 * noise
    else:
        assert len(found.flagged) < 0.005 * len(given)


@pytest.mark.slow
@pytest.mark.parametrize(("noise", "overconfident"), [(0.05, 1.0), (0.05, 3.0), (0.2, 1.0), (0.2, 3.0)])
def test_the_bound_of_the_precision_holds(noise: float, overconfident: float) -> None:
    """At 99 %, where labels are wrong at random; a model that is too sure of itself does not break it."""
    held, gaps = [], []
    for seed in range(100):
        given, true, p = simulated(1000, noise, 1000 + seed, sharpness=8.0)
        found = find_label_errors(given, (overconfident * p.log()).softmax(1))
        if found.least_precision is not None:
            precision = float((given != true)[found.flagged].double().mean())
            held.append(found.least_precision <= precision)
            gaps.append(precision - found.least_precision)
    assert len(held) > 20
    assert sum(held) >= 0.97 * len(held)
    assert sum(gaps) / len(gaps) < 0.25


def test_few_suspects_have_no_bound() -> None:
    given, _, p = simulated(400, 0.02, 3, sharpness=20)
    found = find_label_errors(given, p)
    assert 0 < len(found.flagged) < LEAST_OUTER
    assert found.least_precision is None
    assert find_label_errors(given, p, rule="both").least_precision is None


@pytest.mark.parametrize("rule", ["posterior", "confident-joint", "class", "noise-rate", "both"])
def test_flipped_labels_are_found_by_every_rule(rule: str) -> None:
    given, true, p = simulated(3000, 0.1, 2, sharpness=20)
    found = find_label_errors(given, p, rule=rule)  # type: ignore[arg-type]
    wrong = given != true
    assert float(wrong[found.flagged].double().mean()) > 0.85
    assert len(found.flagged) > 0.7 * int(wrong.sum())
    right = found.flagged[wrong[found.flagged]]
    assert float((found.suggested[right] == true[right]).double().mean()) > 0.9


def test_both_is_the_intersection_and_the_order_is_by_margin() -> None:
    given, _, p = simulated(1000, 0.15, 3)
    by_rule = {rule: find_label_errors(given, p, rule=rule) for rule in ("class", "noise-rate", "both")}  # type: ignore
    sets = {rule: set(found.flagged.tolist()) for rule, found in by_rule.items()}
    assert sets["both"] == sets["class"] & sets["noise-rate"]
    margins = by_rule["both"].margin[by_rule["both"].flagged]
    assert bool((margins.diff() >= 0).all())
    assert bool((margins < 0).all())


def test_perfect_labels_raise_no_suspicion() -> None:
    labels = torch.arange(50) % 5
    assert len(find_label_errors(labels, torch.eye(5)[labels]).flagged) == 0


def test_a_class_that_nobody_has_or_is_sure_of_is_harmless() -> None:
    p = torch.tensor([[0.6, 0.3, 0.1], [0.7, 0.2, 0.1], [0.3, 0.6, 0.1], [0.2, 0.7, 0.1]])
    found = find_label_errors(torch.tensor([0, 0, 1, 1]), p)
    assert len(found.flagged) == 0
    assert torch.isfinite(found.joint).all()


@pytest.mark.parametrize(
    ("labels", "p", "message"),
    [
        ([0, 1], [[0.5, 0.5]], "for 2 labels"),
        ([0], [[1.0]], "at least 2 classes"),
        ([0, 2], [[0.5, 0.5], [0.5, 0.5]], r"labels must be in 0..1, got 0..2"),
        ([0, 1], [[0.5, 0.5], [0.9, 0.5]], "sum to 1"),
        ([0, 1], [[0.5, 0.5], [float("nan"), 0.5]], "sum to 1"),
    ],
)
def test_what_cannot_be_judged_is_refused(labels: list[int], p: list[list[float]], message: str) -> None:
    with pytest.raises(HoldfastError, match=message):
        find_label_errors(torch.tensor(labels), torch.tensor(p))
