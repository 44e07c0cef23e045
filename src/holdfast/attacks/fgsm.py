"""FGSM: one step of full length along the gradient (Goodfellow et al., 2015)."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from holdfast.attacks.common import Mode, Model, Slopes, Target, borrowed, make_goal
from holdfast.attacks.losses import LossName
from holdfast.attacks.norms import Norm, Space, make_ball


def fgsm(
    model: Model,
    x: Tensor,
    y: Tensor,
    *,
    radius: float,
    norm: Norm = "linf",
    target: Target = None,
    loss: LossName = "ce",
    space: Space = "pixel",
    scale: Tensor | Sequence[float] | None = None,
    bounds: tuple[float, float] = (0.0, 1.0),
    mode: Mode = "eval",
) -> Tensor:
    """``x + radius · sign(∇ loss)``, cut to the range of pixels; with ``norm="l2"`` along the gradient itself.

    x: images (B, C, H, W) in [0, 1]. y: (B,) classes. The other arguments are those of :func:`pgd`.

    >>> brightness = lambda x: torch.stack([x.mean((1, 2, 3)), torch.zeros(len(x))], 1)
    >>> fgsm(brightness, torch.full((1, 1, 1, 2), 0.5), torch.tensor([0]), radius=0.25)
    tensor([[[[0.2500, 0.2500]]]])
    """
    ball = make_ball(x, radius=radius, norm=norm, space=space, scale=scale, bounds=bounds)
    if radius == 0:
        return x.detach().clone()
    with borrowed(model, mode), torch.no_grad():
        goal = make_goal(model, x, y, target=target, loss=loss)
        _, _, gradient = Slopes(model)(x, goal)
        return ball.point(ball.project(ball.start + radius * ball.ascent(gradient)))
