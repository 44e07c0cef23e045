"""Neighbours that contradict a shortcut: images that a biased model gets wrong and the other one does not."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack

import torch
import torch.nn.functional as F
from torch import Tensor

from holdfast.borrow import evaluating, frozen_parameters, frozen_statistics
from holdfast.errors import require
from holdfast.vicinity.attacks.common import Mode, Model
from holdfast.vicinity.norms import Norm, Space, make_ball
from holdfast.vicinity.streams import side_by_side


def bias_adversarial(
    x: Tensor,
    y: Tensor,
    model: Model,
    biased: Model,
    *,
    radius: float,
    lam: float,
    steps: int = 5,
    norm: Norm = "l2",
    step_size: float | None = None,
    space: Space = "pixel",
    scale: Tensor | Sequence[float] | None = None,
    random_start: bool = False,
    bounds: tuple[float, float] = (0.0, 1.0),
    mode: Mode = "eval",
    generator: torch.Generator | None = None,
) -> Tensor:
    """Images within the radius at which L(biased) − λ·L(model) is as large as PGD finds it (BiasAdv, eq. 3).

    x: images (B, C, H, W) in [0, 1]. y: (B,) classes. radius: in pixels, or in units of ``scale`` with
    ``space="normalised"``. step_size: 2.5 · radius / steps unless given.
    mode: "eval" runs both in evaluation mode; "as-is" as they are, with their statistics given back.
    The result is detached, both models are left as they were, and nothing waits for the device.
    """
    require(steps >= 1, f"steps must be >= 1, got {steps}")
    require(lam >= 0, f"lam must be >= 0, got {lam}")
    ball = make_ball(x, radius=radius, norm=norm, space=space, scale=scale, bounds=bounds)
    if radius == 0:
        return x.detach().clone()
    length = min(radius, 2.5 * radius / steps) if step_size is None else step_size
    both = [m for m in (model, biased) if isinstance(m, torch.nn.Module)]
    with ExitStack() as loan, frozen_parameters(*both), torch.no_grad():
        for borrowed in both:
            loan.enter_context(evaluating(borrowed) if mode == "eval" else frozen_statistics(borrowed))
        position = ball.random(generator) if random_start else ball.start
        for _ in range(steps):
            slope = _slope(ball.point(position), y, model, biased, lam)
            position = ball.project(position + length * ball.ascent(slope))
        return ball.point(position)


def objective(x: Tensor, y: Tensor, model: Model, biased: Model, *, lam: float) -> Tensor:
    """(B,) L(biased) − λ·L(model): what :func:`bias_adversarial` climbs."""
    value = _loss(biased(x), y)
    return value - lam * _loss(model(x), y) if lam else value


def _slope(x: Tensor, y: Tensor, model: Model, biased: Model, lam: float) -> Tensor:
    """Gradient of the objective; the models know nothing of each other, so each has its part computed by itself."""
    if not lam:
        return _gradient(x, y, biased)
    away, own = side_by_side(lambda: _gradient(x, y, biased), lambda: _gradient(x, y, model), x.device)
    return away - lam * own


def _gradient(x: Tensor, y: Tensor, model: Model) -> Tensor:
    with torch.enable_grad():
        x = x.detach().requires_grad_()
        (gradient,) = torch.autograd.grad(_loss(model(x), y).sum(), x)
    return gradient


def _loss(logits: Tensor, y: Tensor) -> Tensor:
    return F.cross_entropy(logits.to(torch.promote_types(logits.dtype, torch.float32)), y, reduction="none")
