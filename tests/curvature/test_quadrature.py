"""Spectral densities against closed forms."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from holdfast.curvature import density, smoothed
from holdfast.errors import HoldfastError
from tests.curvature.matrices import draw, matrix_of


def test_moments_of_a_diagonal_matrix_are_exact() -> None:
    # every probe of ±1 has the same length along every axis
    values = torch.cat([torch.linspace(-1, 1, 180), torch.linspace(3, 9, 20)]).double()
    probes = [draw(200, seed=s).sign() for s in range(3)]
    found = density(lambda v: values * v, probes, steps=30)
    assert float(found.weights.sum()) == pytest.approx(1.0)
    for power in range(1, 6):
        moment = float((found.weights * found.nodes**power).sum())
        assert moment == pytest.approx(float((values**power).mean()), rel=1e-9)


def test_integrates_to_one_and_has_the_moments_of_the_spectrum() -> None:
    values = torch.cat([torch.linspace(-1, 1, 290), torch.linspace(3, 9, 10)]).double()
    a = matrix_of(values)
    found = density(a.mv, [draw(300, seed=s) for s in range(20)], steps=60, sigma=0.2)
    step = found.grid[1] - found.grid[0]
    mass, mean = found.values.sum() * step, (found.grid * found.values).sum() * step
    square = (found.grid**2 * found.values).sum() * step
    assert float(mass) == pytest.approx(1.0, abs=1e-4)
    assert float(mean) == pytest.approx(float(values.mean()), abs=0.05)
    assert float(square) == pytest.approx(float((values**2).mean()) + 0.2**2, rel=0.1)


def test_matches_the_smoothed_histogram() -> None:
    values = torch.cat([torch.linspace(-1, 1, 280), torch.full((20,), 6.0)]).double()
    a = matrix_of(values)
    found = density(a.mv, [draw(300, seed=s) for s in range(20)], steps=40, sigma=0.3)
    exact = smoothed(values, torch.full((300,), 1 / 300).double(), sigma=0.3)
    assert (found.values - exact.values).abs().max() < 0.1 * exact.values.max()
    assert float(found.values[found.grid > 4].sum() / found.values.sum()) == pytest.approx(20 / 300, rel=0.2)


@pytest.mark.parametrize("value", [0.0, 3.0])
def test_one_eigenvalue_is_one_bell(value: float) -> None:
    found = density(lambda v: value * v, [draw(40)], steps=10)
    assert found.nodes.tolist() == pytest.approx([value])
    assert float(found.values.sum() * (found.grid[1] - found.grid[0])) == pytest.approx(1.0, abs=1e-4)


@pytest.mark.parametrize(
    ("probes", "changes", "message"),
    [
        ([], {}, "needs at least one probe"),
        ([torch.ones(4)], {"steps": 0}, "steps must be >= 1, got 0"),
        ([torch.ones(4)], {"sigma": 0.0}, "sigma must be > 0, got 0.0"),
        ([torch.ones(4)], {"points": 1}, "points must be >= 2, got 1"),
    ],
)
def test_bad_input_is_named(probes: list[Tensor], changes: dict[str, Any], message: str) -> None:
    with pytest.raises(HoldfastError, match=message):
        density(lambda v: v, probes, **changes)
