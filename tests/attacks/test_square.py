"""The patches of the random search: what they may spend of the radius."""

from __future__ import annotations

from functools import partial

import pytest
import torch

from holdfast.attacks.norms import make_ball
from holdfast.attacks.square import _l2_patch


@pytest.mark.parametrize("channels", [1, 3])
@pytest.mark.parametrize("spent", [0.0, 0.6, 1.0])
def test_a_patch_under_l2_takes_up_what_is_left_of_the_radius_and_no_more(channels: int, spent: float) -> None:
    """The length of two patches and what is unused go into one of them: the perturbation is then as long as the radius.

    Channels share what is unused alike, so each one's energy is known by itself too.
    """
    generator = torch.Generator().manual_seed(0)
    x = torch.full((64, channels, 12, 12), 0.5, dtype=torch.float64)
    ball = make_ball(x, radius=1.5, norm="l2")
    before = torch.randn(x.shape, generator=generator, dtype=torch.float64)
    before = before / before.square().sum((1, 2, 3), keepdim=True).sqrt() * spent * 1.5
    after = _l2_patch(ball, x + before, 5, partial(torch.randint, generator=generator)) - x
    energy = after.square().sum((1, 2, 3))
    torch.testing.assert_close(energy, torch.full_like(energy, 1.5**2))
    share = (1.5**2 - (spent * 1.5) ** 2) / channels
    gained = after.square().sum((2, 3)) - before.square().sum((2, 3))
    torch.testing.assert_close(gained, torch.full_like(gained, share), atol=1e-9, rtol=1e-9)
