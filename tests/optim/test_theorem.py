"""How near the running mean comes to the full gradient: Theorem 1 of Friendly SAM (supplement, eq. 27 and A2).

f is the gradient of a quadratic, so its Lipschitz constant β is known; the path takes steps of length γG exactly; the
noise has E‖n‖² = M exactly. The theorem weighs gradients by λ^(T−t) / Σ λ^(T−t), ours gives the first one λ^(T−1) in
place of (1−λ)·λ^(T−1): the same to 1e-6 at these T.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import pytest
import torch
from torch import Tensor, nn

from holdfast.optim.average import GradientAverage

REPEATS = 4000
DIMENSIONS = 10
DELTA = 0.05


@dataclass(frozen=True)
class Problem:
    """λ, the step γG of the path, and the noise's M; β = 2."""

    lmbda: float
    step: float
    noise: float
    beta: float = 2.0

    @property
    def length(self) -> int:
        return math.ceil(math.log(1e-6) / math.log(self.lmbda))

    def bound(self) -> float:
        """Eq. 27."""
        gain = 1 - self.lmbda
        spread = 4 * math.sqrt(self.noise * gain * math.log(math.exp(-1 / 4) / DELTA))
        return (spread + self.step * self.beta / gain) / (1 - self.lmbda**self.length)

    def errors(self, *, seed: int = 0, averaged: float | None = None) -> Tensor:
        """‖m_T − f(x_T)‖ of every repetition; ``averaged``: the mean's λ, if not the problem's."""
        generator = torch.Generator().manual_seed(seed)
        curvature = torch.linspace(0.1, self.beta, DIMENSIONS, dtype=torch.float64)
        position = nn.Parameter(torch.ones(REPEATS, DIMENSIONS, dtype=torch.float64))
        along = torch.zeros(DIMENSIONS, dtype=torch.float64)
        along[-1] = 1.0  # straight on along the steepest axis: the worst path that the theorem allows
        average = GradientAverage()
        gradient = position.detach()
        for t in range(self.length):
            gradient = curvature * (position.detach() + t * self.step * along)
            noise = torch.randn(position.shape, generator=generator, dtype=torch.float64)
            noise *= math.sqrt(self.noise) / noise.norm(dim=1, keepdim=True)
            average.residual([position], [gradient + noise], lmbda=averaged or self.lmbda)
            average.commit(None)
        return (average[position] - gradient).norm(dim=1)


# How far the bound may lie above the errors: Bernstein's constant where noise rules, next to nothing where drift does.
PROBLEMS = {
    "noise": (Problem(lmbda=0.9, step=0.0, noise=4.0), 10.0),
    "little noise, long memory": (Problem(lmbda=0.98, step=0.0, noise=0.01), 10.0),
    "drift": (Problem(lmbda=0.9, step=0.05, noise=0.0), 1.0 / 0.9 + 1e-3),
    "drift, short memory": (Problem(lmbda=0.6, step=0.05, noise=0.0), 1.0 / 0.6 + 1e-3),
    "both": (Problem(lmbda=0.9, step=0.05, noise=0.25), 4.0),
}


@pytest.mark.parametrize("name", PROBLEMS)
def test_the_error_keeps_to_the_bound_and_the_bound_says_something(name: str) -> None:
    problem, slack = PROBLEMS[name]
    errors, bound = problem.errors(), problem.bound()
    assert (errors <= bound).double().mean() >= 1 - DELTA
    assert bound <= slack * torch.quantile(errors, 1 - DELTA)


def test_a_longer_memory_than_claimed_breaks_the_bound() -> None:
    problem, _ = PROBLEMS["drift"]
    assert (problem.errors(averaged=0.95) > problem.bound()).all()


def test_what_is_left_of_the_batch_gradient_is_at_right_angles_to_the_full_one() -> None:
    """Lemma 1: E⟨g − σ·m, ∇L⟩ = (1 − σ)·‖∇L‖², for a mean without bias."""
    generator = torch.Generator().manual_seed(0)
    full = torch.linspace(-1, 2, DIMENSIONS, dtype=torch.float64)
    place = nn.Parameter(torch.zeros(REPEATS, DIMENSIONS, dtype=torch.float64))
    average = GradientAverage()
    for _ in range(60):
        gradient = full + torch.randn(place.shape, generator=generator, dtype=torch.float64)
        residual = average.residual([place], [gradient], lmbda=0.9)[0]
        mean = average[place].clone()
        average.commit(None)
    for sigma in (0.0, 0.5, 1.0):
        products = (residual + (1 - sigma) * mean) @ full
        error = products.std() / math.sqrt(REPEATS)
        assert abs(products.mean() - (1 - sigma) * full @ full) < 4 * error
