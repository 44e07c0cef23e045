"""Labels against a linear program, torch's own smoothing, and the closed form of the loss."""

from __future__ import annotations

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from scipy.optimize import linprog

from holdfast.augment import adversarial_labels, smooth_labels
from holdfast.errors import HoldfastError
from holdfast.losses import cross_entropy


def worst_by_linear_program(logits: np.ndarray, y: int, epsilon: float) -> float:
    """max over probabilities t with ‖t − onehot(y)‖₁ ≤ ε of −Σ t log p, with the distance as up − down."""
    k = len(logits)
    cost = -(logits - np.logaddexp.reduce(logits))
    hot = np.eye(k)[y]
    # t = hot + up − down ≥ 0, Σ(up − down) = 0, Σ(up + down) ≤ ε
    found = linprog(
        -np.concatenate([cost, -cost]),
        A_ub=np.vstack([np.hstack([-np.eye(k), np.eye(k)]), np.ones((1, 2 * k))]),
        b_ub=np.concatenate([hot, [epsilon]]),
        A_eq=np.concatenate([np.ones(k), -np.ones(k)])[None],
        b_eq=[0.0],
    )
    assert found.status == 0
    return float(cost[y] - found.fun)


@pytest.mark.slow
def test_adversarial_labels_are_the_optimum_of_a_linear_program() -> None:
    random = np.random.default_rng(0)
    least_likely_is_the_label = 0
    for case in range(500):
        k, epsilon = int(random.integers(2, 101)), float(random.uniform(0, 2))
        logits = random.normal(scale=random.uniform(0.1, 5), size=k)
        y = int(logits.argmin()) if case % 10 == 0 else int(random.integers(k))
        least_likely_is_the_label += y == logits.argmin()
        outputs, label = torch.tensor(logits)[None], torch.tensor([y])
        found = adversarial_labels(outputs, label, epsilon=epsilon).double()
        assert float((found - F.one_hot(label, k)).abs().sum()) <= epsilon + 1e-6
        assert float(found.sum()) == pytest.approx(1, abs=1e-6)
        assert float(found.min()) >= 0
        assert float(cross_entropy(outputs, found)) == pytest.approx(
            worst_by_linear_program(logits, y, epsilon), rel=1e-6, abs=1e-6
        )
    assert least_likely_is_the_label >= 50


@pytest.mark.parametrize("k", [2, 3, 10])
@pytest.mark.parametrize("epsilon", [0.0, 0.3, 1.0])
def test_the_loss_is_cross_entropy_plus_a_margin(k: int, epsilon: float) -> None:
    generator = torch.Generator().manual_seed(k)
    z = torch.randn(64, k, generator=generator, dtype=torch.float64, requires_grad=True)
    y = torch.randint(k, (64,), generator=generator)
    loss = cross_entropy(z, adversarial_labels(z, y, epsilon=epsilon).double())
    own = z.gather(1, y[:, None])[:, 0]
    expected = F.cross_entropy(z, y, reduction="none") + epsilon / 2 * (own - z.min(1).values)
    torch.testing.assert_close(loss, expected, rtol=1e-6, atol=1e-6)
    (a,) = torch.autograd.grad(loss.sum(), z, retain_graph=True)
    (b,) = torch.autograd.grad(expected.sum(), z)
    torch.testing.assert_close(a, b, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("k", [2, 7, 100])
@pytest.mark.parametrize("epsilon", [0.0, 0.1, 0.5])
def test_smoothing_is_that_of_torch_with_another_name_for_its_strength(k: int, epsilon: float) -> None:
    z = torch.randn(32, k, generator=torch.Generator().manual_seed(0))
    y = torch.arange(32) % k
    ours = cross_entropy(z, smooth_labels(y, k, epsilon=epsilon)).mean()
    torch.testing.assert_close(ours, F.cross_entropy(z, y, label_smoothing=epsilon * k / (k - 1)))


@pytest.mark.parametrize("epsilon", [-0.1, 2.1])
def test_a_ball_that_no_label_has_is_refused(epsilon: float) -> None:
    with pytest.raises(HoldfastError, match=f"epsilon must be in .0, 2.*got {epsilon}"):
        adversarial_labels(torch.zeros(1, 3), torch.tensor([0]), epsilon=epsilon)
