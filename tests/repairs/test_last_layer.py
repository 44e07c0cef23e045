"""Last layers from features against scikit-learn, against closed forms, and on data whose shortcut is known."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from scipy.optimize import minimize
from sklearn.linear_model import LogisticRegression
from torch import Tensor

from holdfast.repairs.last_layer import (
    LinearHead,
    afr,
    afr_weights,
    balanced_subsample,
    cells_of,
    cross_fitted,
    dfr,
    fit_head,
    fit_heads,
    folds_of,
    group_scores,
)


def made(n: int = 200, d: int = 6, k: int = 3, seed: int = 0) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(n, d, generator=generator, dtype=torch.float64)
    truth = torch.randn(k, d, generator=generator, dtype=torch.float64)
    y = (x @ truth.T + torch.randn(n, k, generator=generator, dtype=torch.float64)).argmax(1)
    return x, y


def loss_of(head: LinearHead, x: Tensor, y: Tensor, *, l1: float = 0.0, l2: float = 0.0) -> float:
    mean = torch.nn.functional.cross_entropy(head(x), y)
    return float(mean + l1 * head.weight.abs().sum() + l2 / 2 * head.weight.square().sum())


def test_the_l2_head_is_that_of_scikit_learn() -> None:
    x, y = made()
    c = 0.3
    theirs = LogisticRegression(C=c, tol=1e-10, max_iter=5000).fit(x.numpy(), y.numpy())
    ours = fit_head(x, y, num_classes=3, l2=1 / (c * len(y)))
    torch.testing.assert_close(ours(x).softmax(1), torch.from_numpy(theirs.predict_proba(x.numpy())), atol=1e-4, rtol=0)


def test_the_l1_head_is_no_worse_than_that_of_scikit_learn_and_is_sparse() -> None:
    x, y = made(d=12)
    c = 0.05
    theirs = LogisticRegression(C=c, l1_ratio=1.0, solver="saga", tol=1e-8, max_iter=20000, random_state=0)
    theirs.fit(x.numpy(), y.numpy())
    other = LinearHead(torch.from_numpy(theirs.coef_).double(), torch.from_numpy(theirs.intercept_).double())
    ours, l1 = fit_head(x, y, num_classes=3, l1=1 / (c * len(y))), 1 / (c * len(y))
    assert loss_of(ours, x, y, l1=l1) <= loss_of(other, x, y, l1=l1) + 1e-6
    assert int((ours.weight == 0).sum()) >= 10
    assert bool((fit_head(x, y, num_classes=3, l1=100.0).weight == 0).all())


def test_many_problems_at_once_are_solved_as_each_alone_though_features_come_and_go() -> None:
    x, y = made(150, d=60, seed=4)
    x[:, 30:] = x[:, :30] + 0.1 * x[:, 30:]  # correlated features, of which a penalty keeps one or the other
    weights = torch.rand(3, 150, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    weights /= weights.sum(1, keepdim=True)
    rates = [0.002, 0.01, 0.05]
    together = fit_heads(x, y, num_classes=3, weights=weights, l1=rates, l2=[0.0] * 3, tolerance=1e-14)
    sizes = [int((head.weight != 0).any(0).sum()) for head in together]
    assert sizes[0] > sizes[1] > sizes[2] > 0
    for own, rate, head in zip(weights, rates, together, strict=True):
        gradient = ((head(x).softmax(1) - torch.nn.functional.one_hot(y, 3)) * own[:, None]).T @ x
        # at the minimum the gradient is −l1·sign on the features in use, and no larger on any other
        used = head.weight != 0
        torch.testing.assert_close(gradient[used], -rate * head.weight[used].sign(), atol=2e-5, rtol=0)
        assert float(gradient[~used].abs().max()) <= rate * 1.01


def test_weights_count_as_repeated_samples_do() -> None:
    x, y = made(60)
    times = 1 + torch.arange(60) % 3
    repeated = fit_head(x.repeat_interleave(times, 0), y.repeat_interleave(times), num_classes=3, l2=0.1)
    weighted = fit_head(x, y, num_classes=3, weights=times.double() / times.sum(), l2=0.1)
    torch.testing.assert_close(weighted.weight, repeated.weight, atol=1e-5, rtol=0)


def test_a_strong_pull_keeps_the_first_head_and_none_forgets_it() -> None:
    x, y = made()
    first = LinearHead(torch.randn(3, 6, dtype=torch.float64), torch.randn(3, dtype=torch.float64))
    same, near, far = (head.weight for head in afr(x, y, first, candidates=[(4, 1e6), (4, 10), (4, 0.1)]))
    torch.testing.assert_close(same, first.weight, atol=1e-4, rtol=0)
    assert float((near - first.weight).norm()) < float((far - first.weight).norm())


@pytest.mark.parametrize("k", [2, 4])
def test_afr_minimises_the_papers_objective(k: int) -> None:
    """Equations 2 and 3 of the paper in numpy, minimised by L-BFGS of scipy."""
    x, y = made(120, k=k, seed=k)
    first = fit_head(x[:, :3] @ torch.eye(3, 6, dtype=torch.float64), y, num_classes=k, l2=0.05)
    features, labels, n, d = x.numpy(), y.numpy(), 120, 6
    start = np.concatenate([first.weight.numpy().ravel(), first.bias.numpy()])

    def log_probabilities(phi: Any) -> Any:
        logits = features @ phi[: k * d].reshape(k, d).T + phi[k * d :]
        return logits - np.log(np.exp(logits).sum(1, keepdims=True))

    candidates = [(0.0, 0.3), (4.0, 0.1), (9.0, 0.02)]
    for (gamma, lam), ours in zip(candidates, afr(x, y, first, candidates=candidates), strict=True):
        p_hat = np.exp(log_probabilities(start))[np.arange(n), labels]
        beta = 1 / np.array([(labels == c).sum() for c in range(k)])
        mu = beta[labels] * np.exp(-gamma * p_hat)
        mu /= mu.sum()

        def objective(phi: Any, mu: Any = mu, lam: float = lam) -> float:
            losses = -log_probabilities(phi)[np.arange(n), labels]
            return float((mu * losses).sum() + lam * ((phi - start) ** 2).sum())

        best = minimize(objective, start, method="L-BFGS-B", options={"maxiter": 5000, "ftol": 1e-15, "gtol": 1e-9})
        own = np.concatenate([ours.weight.numpy().ravel(), ours.bias.numpy()])
        assert objective(own) <= best.fun + 1e-8
        np.testing.assert_allclose(own, best.x, atol=2e-4)


def test_the_weights_of_afr_follow_their_formula() -> None:
    p = torch.tensor([[0.9, 0.1], [0.5, 0.5], [0.2, 0.8]])
    y = torch.tensor([0, 0, 1])
    raw = [torch.exp(torch.tensor(-3 * q)).item() / n for q, n in ((0.9, 2), (0.5, 2), (0.8, 1))]
    assert afr_weights(p, y, gamma=3).tolist() == pytest.approx([v / sum(raw) for v in raw], rel=1e-6)
    assert afr_weights(p, y, gamma=0).tolist() == pytest.approx([0.25, 0.25, 0.5])


def test_a_subsample_has_equally_many_of_every_cell() -> None:
    labels, groups = torch.arange(300) % 3, torch.arange(300) // 290
    cells = cells_of(labels, groups)
    own = balanced_subsample(cells, generator=torch.Generator().manual_seed(0))
    assert torch.bincount(cells[own]).tolist() == [3] * 6
    assert len(own.unique()) == len(own)


def spurious(n: int, *, conflict: float, seed: int) -> tuple[Tensor, Tensor, Tensor]:
    """Feature 0 is the group, loud; feature 1 is the class, quiet; the rest is noise."""
    generator = torch.Generator().manual_seed(seed)
    y = torch.arange(n) % 2
    group = torch.where(torch.rand(n, generator=generator) < conflict, 1 - y, y)
    x = torch.randn(n, 8, generator=generator, dtype=torch.float64)
    x[:, 0] = 8 * (group.double() - 0.5) + x[:, 0]
    x[:, 1] = 3 * (y.double() - 0.5) + x[:, 1]
    return x, y, group


def test_dfr_leaves_the_shortcut_and_works_on_features_that_are_not_standardised() -> None:
    x, y, group = spurious(1000, conflict=0.05, seed=0)
    plain = fit_head(x, y, num_classes=2, l2=1e-3)
    generator = torch.Generator().manual_seed(0)
    (fixed,) = dfr(x, y, group, num_classes=2, strengths=[0.1], repeats=5, generator=generator)
    test_x, test_y, test_group = spurious(4000, conflict=0.5, seed=1)
    cells = cells_of(test_y, test_group)
    before, after = (group_scores(head(test_x), test_y, cells)[0] for head in (plain, fixed))
    best = 0.933  # Φ(1.5): what the class's own feature allows
    assert before < 0.7
    assert after == pytest.approx(best, abs=0.06)
    (again,) = dfr(x * 100 + 7, y, group, num_classes=2, strengths=[0.1], repeats=5,
                   generator=torch.Generator().manual_seed(0))  # fmt: skip
    torch.testing.assert_close(again(test_x * 100 + 7), fixed(test_x), atol=1e-6, rtol=0)


def test_afr_gains_without_groups() -> None:
    x, y, _ = spurious(4000, conflict=0.05, seed=0)
    first = fit_head(x, y, num_classes=2, l2=0.3)
    (fixed,) = afr(x, y, first, candidates=[(4, 0.1)])
    test_x, test_y, test_group = spurious(4000, conflict=0.5, seed=1)
    cells = cells_of(test_y, test_group)
    assert group_scores(fixed(test_x), test_y, cells)[0] > group_scores(first(test_x), test_y, cells)[0] + 0.5


def test_cross_fitted_answers_are_of_heads_that_did_not_see_the_sample() -> None:
    x, y = made(50)
    folds = folds_of(y, 5, generator=torch.Generator().manual_seed(0))
    for label in y.unique().tolist():
        spread = torch.bincount(folds[y == label], minlength=5)
        assert int(spread.max() - spread.min()) <= 1
    used: list[Tensor] = []

    def fit(index: Tensor) -> list[LinearHead]:
        used.append(index)
        return [fit_head(x[index], y[index], num_classes=3, l2=0.1)]

    (logits,) = cross_fitted(x, y, fit, count=5, generator=torch.Generator().manual_seed(0))
    for fold, index in enumerate(used):
        inside = (folds == fold).nonzero().flatten()
        assert not set(inside.tolist()) & set(index.tolist())
        torch.testing.assert_close(logits[inside], fit_head(x[index], y[index], num_classes=3, l2=0.1)(x[inside]))
