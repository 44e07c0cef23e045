"""Mixing against scipy's Beta distribution and counted pixels."""

from __future__ import annotations

import pytest
import torch
from scipy import stats

from holdfast.augment import beta_of, cut, draw_beta, mix
from holdfast.errors import HoldfastError

CPU = torch.device("cpu")


def generator(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


@pytest.mark.parametrize(("alpha", "beta"), [(1.0, 1.0), (0.2, 0.2), (7.0, 3.0), (0.05, 0.05), (40.0, 2.0)])
def test_draws_follow_the_beta_distribution(alpha: float, beta: float) -> None:
    drawn = draw_beta(alpha, beta, 20_000, generator=generator(), device=CPU)
    assert torch.isfinite(drawn).all()
    places = torch.linspace(0.001, 0.999, 200)
    below = (drawn[:, None] <= places).double().mean(0)
    assert (below - torch.tensor(stats.beta(alpha, beta).cdf(places))).abs().max() < 0.015  # 1.36/√n is 0.01


@pytest.mark.parametrize("mode", [0.0, 0.75, 0.9, 1.0])
@pytest.mark.parametrize("concentration", [3.0, 10.0, 50.0])
def test_mode_and_concentration_give_the_beta_that_has_them(mode: float, concentration: float) -> None:
    alpha, beta = beta_of(mode, concentration)
    assert alpha + beta == pytest.approx(concentration)
    assert (alpha - 1) / (alpha + beta - 2) == pytest.approx(mode)


def test_a_concentration_without_a_mode_is_refused() -> None:
    with pytest.raises(HoldfastError, match="concentration must be > 2"):
        beta_of(0.9, 2.0)


def test_mixing_keeps_each_samples_own_share() -> None:
    x, partner = torch.rand(4, 3, 5, 5), torch.rand(4, 3, 5, 5)
    lam = torch.tensor([0.0, 0.25, 0.5, 1.0])
    mixed = mix(x, partner, lam)
    for i, share in enumerate(lam):
        torch.testing.assert_close(mixed[i], share * x[i] + (1 - share) * partner[i])
    assert torch.equal(mixed[3], x[3])


def test_a_box_covers_what_the_share_says() -> None:
    x, partner = torch.zeros(500, 1, 32, 32), torch.ones(500, 1, 32, 32)
    lam = draw_beta(1.0, 1.0, 500, generator=generator(), device=CPU)
    images, share = cut(x, partner, lam, generator=generator(1))
    torch.testing.assert_close(1 - images.mean((1, 2, 3)), share)
    assert (share >= lam - 0.07).all()  # a box is cut off by the border, and its side is a whole number of pixels
    rows = images.amax((1, 3)) > 0
    widths = [int(r.sum()) for r in rows]
    spans = [int(r.nonzero().max() - r.nonzero().min()) + 1 if r.any() else 0 for r in rows]
    assert widths == spans  # one box, without gaps


@pytest.mark.parametrize("pixels", [1, 8, 15, 24])
def test_a_box_has_the_side_that_its_area_asks_for(pixels: int) -> None:
    """1 − λ of the area is a square of so many pixels a side, wherever it does not meet the border."""
    x, partner = torch.zeros(400, 1, 32, 32), torch.ones(400, 1, 32, 32)
    images, share = cut(x, partner, torch.full((400,), 1 - (pixels / 32) ** 2), generator=generator())
    sides = images.amax((1, 3)).sum(1)
    assert int(sides.max()) == pixels
    whole = (sides == pixels) & (images.amax((1, 2)).sum(1) == pixels)
    assert whole.any()
    torch.testing.assert_close(share[whole], torch.full_like(share[whole], 1 - (pixels / 32) ** 2))
