"""Balls: what they give out is inside in real numbers, in every number format."""

from __future__ import annotations

import math
from fractions import Fraction

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.attacks.norms import inward, make_ball, unit
from holdfast.errors import HoldfastError

DTYPES = (torch.float16, torch.bfloat16, torch.float32, torch.float64)


def images(seed: int, n: int = 3, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    x = torch.rand(n, 3, 4, 5, generator=torch.Generator().manual_seed(seed), dtype=torch.float64).to(dtype)
    x[0, 0] = 0
    x[0, 1] = 1
    return x


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 10_000), st.floats(0, 2), st.sampled_from(DTYPES))
def test_rounding_goes_towards_the_centre(seed: int, size: float, dtype: torch.dtype) -> None:
    x = images(seed, dtype=dtype)
    step = torch.randn(x.shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64) * size
    step[:, :, 0] *= 1e-8
    moved = inward(x, step, dtype)
    for a, b, s in zip(x.flatten().tolist(), moved.flatten().tolist(), step.flatten().tolist(), strict=True):
        exact = Fraction(b) - Fraction(a)
        if dtype is torch.float64:  # the difference itself is rounded there
            assert abs(b - a) <= abs(s)
        else:
            assert abs(exact) <= abs(Fraction(s))
        assert exact * Fraction(s) >= 0
    nearest = (x.double() + step).to(dtype).double()
    unit_in_last_place = nearest.abs() * torch.finfo(dtype).eps + torch.finfo(dtype).smallest_normal
    assert bool(((moved.double() - nearest).abs() <= 2 * unit_in_last_place).all())


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("radius", [4 / 255, 0.1, 1e-5, 0.7])
def test_the_l_inf_ball_is_as_large_as_it_may_be(dtype: torch.dtype, radius: float) -> None:
    x = images(1, dtype=dtype)
    ball = make_ball(x, radius=radius)
    eps = torch.finfo(dtype).eps
    wanted_low = (x.double() - radius).clamp(min=0)
    wanted_high = (x.double() + radius).clamp(max=1)
    slack = 3 * eps * (x.double() + radius + torch.finfo(dtype).smallest_normal)
    assert bool((ball.low.double() - wanted_low <= slack).all())
    assert bool((wanted_high - ball.high.double() <= slack).all())
    assert bool((x.double() - ball.low.double() <= radius).all())
    assert bool((ball.high.double() - x.double() <= radius).all())


def test_projection_on_the_l2_ball_is_the_ray_to_the_centre() -> None:
    x = torch.full((2, 1, 2, 2), 0.5, dtype=torch.float64)
    ball = make_ball(x, radius=0.1, norm="l2")
    step = torch.tensor([[0.3, 0.0], [0.0, -0.4]], dtype=torch.float64)
    moved = ball.project(x + torch.stack([step[None], 0.1 * step[None]]))
    torch.testing.assert_close(moved[0] - 0.5, 0.2 * step[None], rtol=1e-6, atol=0)
    torch.testing.assert_close(moved[1] - 0.5, 0.1 * step[None], rtol=1e-12, atol=1e-15)  # inside: left alone


@pytest.mark.parametrize("norm", ["linf", "l2"])
def test_the_ascent_is_the_maximum_of_a_linear_function_over_the_ball(norm: str) -> None:
    x = torch.full((1, 3, 4, 5), 0.5, dtype=torch.float64)
    scale = torch.tensor([0.2, 0.25, 0.5], dtype=torch.float64)
    ball = make_ball(x, radius=0.1, norm=norm, space="normalised", scale=scale)  # type: ignore[arg-type]
    g = torch.randn(x.shape, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    rise = float((g * 0.1 * ball.ascent(g)).sum())
    in_units = (g * scale.view(3, 1, 1)).flatten()
    dual = in_units.abs().sum() if norm == "linf" else in_units.norm()
    assert rise == pytest.approx(0.1 * float(dual))
    for seed in range(20):
        other = ball.random(torch.Generator().manual_seed(seed)) - x
        assert float((g * other).sum()) <= rise


def test_normalised_space_is_a_radius_a_channel() -> None:
    x = torch.full((1, 3, 2, 2), 0.5)
    std = (0.2, 0.25, 0.5)
    ball = make_ball(x, radius=4 / 255, space="normalised", scale=std)
    for channel, deviation in enumerate(std):
        width = float(ball.high[0, channel, 0, 0].double() - 0.5)
        assert width <= 4 / 255 * deviation
        assert width == pytest.approx(4 / 255 * deviation, rel=1e-5)


def test_random_points_fill_the_ball() -> None:
    x = torch.full((4000, 1, 1, 2), 0.5)
    for norm, area in (("linf", 0.04), ("l2", math.pi * 0.01)):
        ball = make_ball(x, radius=0.1, norm=norm)  # type: ignore[arg-type]
        moved = (ball.random(torch.Generator().manual_seed(0)) - x).flatten(1)
        inner = float((moved.norm(dim=1) < 0.05).float().mean())
        assert inner == pytest.approx(math.pi * 0.05**2 / area, abs=0.03)  # share of a disc of half the radius


def test_an_infinite_radius_leaves_the_range_of_pixels() -> None:
    x = images(3)
    for norm in ("linf", "l2"):
        ball = make_ball(x, radius=math.inf, norm=norm)  # type: ignore[arg-type]
        assert torch.equal(ball.project(x + 10), torch.ones_like(x))
        assert torch.equal(ball.project(x - 10), torch.zeros_like(x))
        spread = ball.random(torch.Generator().manual_seed(0))
        assert bool(((spread >= 0) & (spread <= 1)).all())
        assert float(spread.std()) > 0.2


def test_a_pixel_outside_the_range_stays_but_goes_no_farther() -> None:
    x = torch.tensor([[[[-0.25, 1.5]]]])
    ball = make_ball(x, radius=0.5, bounds=(0.0, 1.0))
    assert ball.low.flatten().tolist() == [-0.25, 1.0]
    assert ball.high.flatten().tolist() == [0.25, 1.5]


def test_unit_of_numbers_whose_squares_leave_the_range() -> None:
    direction = torch.tensor([[[[3e-30, 4e-30]]], [[[3e30, 4e30]]], [[[0.0, 0.0]]]])
    assert torch.allclose(unit(direction, "l2").flatten(1), torch.tensor([[0.6, 0.8], [0.6, 0.8], [0.0, 0.0]]))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"radius": -0.1}, "radius must be >= 0, got -0.1"),
        ({"norm": "l3"}, "unknown norm 'l3'; did you mean 'l2'?"),
        ({"space": "pixels"}, "unknown space 'pixels'; did you mean 'pixel'?"),
        ({"space": "normalised"}, 'space="normalised" needs scale'),
        ({"space": "normalised", "scale": (0.1, 0.2)}, "scale must hold one deviation per channel (3), got 2 values"),
        ({"scale": (0.1,)}, "leave it out in pixels"),
        ({"bounds": (1.0, 0.0)}, "bounds must be a range"),
    ],
)
def test_bad_settings_name_the_value(changes: dict[str, object], message: str) -> None:
    with pytest.raises(HoldfastError) as error:
        make_ball(images(0), **{"radius": 0.1, **changes})  # type: ignore[arg-type]
    assert message in str(error.value)


def test_whole_numbers_are_no_images() -> None:
    with pytest.raises(HoldfastError, match="float images"):
        make_ball(torch.zeros(1, 1, 2, 2, dtype=torch.uint8), radius=0.1)
