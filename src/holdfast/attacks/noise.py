"""Noise of a given radius: not an attack, but what every attack must beat."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from holdfast.attacks.norms import Norm, Space, make_ball


def noise(
    x: Tensor,
    *,
    radius: float,
    norm: Norm = "linf",
    space: Space = "pixel",
    scale: Tensor | Sequence[float] | None = None,
    generator: torch.Generator | None = None,
    bounds: tuple[float, float] = (0.0, 1.0),
) -> Tensor:
    """A random corner of the L∞ ball, or a random direction of full length in the L2 ball; cut to the range."""
    ball = make_ball(x, radius=radius, norm=norm, space=space, scale=scale, bounds=bounds)
    if radius == 0:
        return x.detach().clone()
    with torch.no_grad():
        drawn = torch.randn(x.shape, generator=generator, device=x.device)
        return ball.point(ball.project(ball.start + radius * ball.ascent(drawn)))
