"""FGSM and PGD, and what is built on them: unbounded PGD, transfer attacks, random noise, the papers' presets.

FGSM (Goodfellow et al., 2015) is one step of full length along the gradient; PGD (Madry et al., 2018) takes many short
ones, each projected back into the ball.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any, Literal, Unpack

import torch
from torch import Tensor

from holdfast.attacks.norms import Ball, BallSettings, Space, make_ball
from holdfast.attacks.objectives import (
    AttackTarget,
    Best,
    Classifier,
    Goal,
    GoalGradient,
    LossName,
    Mode,
    best_of_clean,
    borrowed,
    make_goal,
    prepared,
    scores,
)
from holdfast.errors import hinted, require, require_known

UNBOUNDED_STEP = 0.01


@hinted(*BallSettings.__annotations__, kind="setting of the attack")
def pgd(
    model: Classifier,
    x: Tensor,
    y: Tensor,
    *,
    radius: float,
    step_size: float | None = None,
    steps: int = 10,
    random_start: bool = False,
    restarts: int = 1,
    target: AttackTarget = None,
    loss: LossName = "ce",
    keep: Literal["best", "last"] = "best",
    early_stop: bool = False,
    batch_size: int | None = None,
    generator: torch.Generator | None = None,
    mode: Mode = "eval",
    **within: Unpack[BallSettings],
) -> Tensor:
    """Adversarial examples within the radius, by projected steps along the gradient.

    x: images (B, C, H, W) in [0, 1]. y: (B,) classes. radius: in pixels; ``math.inf`` leaves only the range of
    pixels as a limit. step_size: 2.5 · radius / steps, at most the radius, unless given (0.01 for an infinite one).
    random_start: start at a random point of the ball; restarts after the first always do.
    target: None is untargeted; else the least likely class, or classes (B,), to reach.
    loss: "ce" is cross-entropy, as log-odds, which do not saturate; "margin" the largest other logit over
    that of the label; "dlr" the margin over a difference of logits.
    keep: the best point of each sample, or the last, as in the paper.
    early_stop: drop samples once they reach the goal. Faster, with the same error; but it synchronises with the
    device after each step, so it cannot be captured, and examples are no stronger than needed.
    batch_size: images per forward pass; None is all.
    mode: "eval" runs a module in evaluation mode; "as-is" leaves its mode alone. Both restore it.
    within: norm, space, scale and bounds, as in :class:`~holdfast.attacks.norms.BallSettings`. Images outside of [0, 1]
    are refused unless bounds say their range.

    >>> brightness = lambda x: torch.stack([x.mean((1, 2, 3)), torch.zeros(len(x))], 1)
    >>> pgd(brightness, torch.full((1, 1, 1, 2), 0.5), torch.tensor([0]), radius=0.25)
    tensor([[[[0.2500, 0.2500]]]])
    """
    ball = make_ball(x, radius=radius, **within)
    require(steps >= 1, f"steps must be >= 1, got {steps}")
    require(restarts >= 1, f"restarts must be >= 1, got {restarts}")
    require(step_size is None or step_size > 0, f"step_size must be > 0, got {step_size}")
    require_known("keep", keep, ("best", "last"))
    require(keep == "best" or restarts == 1, f"keep 'last' has no use for restarts, got {restarts}")
    require(keep == "best" or not early_stop, "early_stop needs keep 'best'")
    if radius == 0:
        return x.detach().clone()
    length = default_step(radius, steps) if step_size is None else step_size
    with borrowed(model, mode), torch.no_grad():
        model = prepared(model, x, mode, batch_size=batch_size, early_stop=early_stop)
        goal = make_goal(model, x, y, target=target, loss=loss)
        if keep == "last":
            gradient_of = GoalGradient(model, batch_size, nan=True)
            position = ball.random(generator) if random_start else ball.start
            for _ in range(steps):
                _, _, gradient = gradient_of(ball.point(position), goal)
                position = ball.project(position + length * ball.ascent(gradient))
            return ball.point(position)
        best = best_of_clean(model, x, goal) if random_start else Best.empty(x)
        for restart in range(restarts):
            start = ball.random(generator) if random_start or restart else ball.start
            _run_once(GoalGradient(model, batch_size), ball, goal, best, start, length, steps, early_stop)
        return best.point


def unbounded(model: Classifier, x: Tensor, y: Tensor, *, steps: int = 200, **settings: Any) -> Tensor:
    """PGD without a radius, 200 steps of 0.01: a model with usable gradients ends near 100 % error.

    settings: those of :func:`pgd`.

    >>> brightness = lambda x: torch.stack([x.mean((1, 2, 3)), torch.full((len(x),), 0.1)], 1)
    >>> unbounded(brightness, torch.full((1, 1, 1, 2), 0.5), torch.tensor([0])).mean() < 0.1
    tensor(True)
    """
    return pgd(model, x, y, radius=math.inf, steps=steps, **settings)


def default_step(radius: float, steps: int) -> float:
    """2.5 · radius / steps, at most the radius: short enough to turn, long enough to cross the ball.

    >>> default_step(8.0, 10), default_step(8.0, 1), default_step(math.inf, 200)
    (2.0, 8.0, 0.01)
    """
    return UNBOUNDED_STEP if math.isinf(radius) else min(radius, 2.5 * radius / steps)


def _run_once(
    gradient_of: GoalGradient,
    ball: Ball,
    goal: Goal,
    best: Best,
    start: Tensor,
    length: float,
    steps: int,
    early_stop: bool,
) -> None:
    """One run; ``best`` collects what it finds."""
    position, index = start, None
    if early_stop and bool(best.reached.any()):  # an earlier run succeeded on these
        index = (~best.reached).nonzero().squeeze(1)
        ball, goal, position = ball.take(index), goal.take(index), position[index]
    for _ in range(steps):
        if len(position) == 0:
            return
        point = ball.point(position)
        value, reached, gradient = gradient_of(point, goal)
        best.update(point, value, reached, index)
        position = ball.project(position + length * ball.ascent(gradient))
        if early_stop and bool(reached.any()):
            left = (~reached).nonzero().squeeze(1)
            index = left if index is None else index[left]
            ball, goal, position = ball.take(left), goal.take(left), position[left]
            gradient_of.take(left)
    if len(position) == 0:
        return
    point = ball.point(position)
    logits = scores(gradient_of.model, point)
    best.update(point, goal.value(logits), goal.reached(logits), index)


@hinted(*BallSettings.__annotations__, kind="setting of the attack")
def fgsm(
    model: Classifier,
    x: Tensor,
    y: Tensor,
    *,
    radius: float,
    target: AttackTarget = None,
    loss: LossName = "ce",
    mode: Mode = "eval",
    **within: Unpack[BallSettings],
) -> Tensor:
    """``x + radius · sign(∇ loss)``, clipped to the range of pixels; with ``norm="l2"`` along the gradient itself.

    x: images (B, C, H, W) in [0, 1]. y: (B,) classes. The other arguments are those of :func:`pgd`.

    >>> brightness = lambda x: torch.stack([x.mean((1, 2, 3)), torch.zeros(len(x))], 1)
    >>> fgsm(brightness, torch.full((1, 1, 1, 2), 0.5), torch.tensor([0]), radius=0.25)
    tensor([[[[0.2500, 0.2500]]]])
    """
    ball = make_ball(x, radius=radius, **within)
    if radius == 0:
        return x.detach().clone()
    with borrowed(model, mode), torch.no_grad():
        goal = make_goal(model, x, y, target=target, loss=loss)
        _, _, gradient = GoalGradient(model)(x, goal)
        return ball.point(ball.project(ball.start + radius * ball.ascent(gradient)))


def transfer(
    surrogate: Classifier | Sequence[Classifier],
    x: Tensor,
    y: Tensor,
    *,
    radius: float,
    attack: Callable[..., Tensor] = pgd,
    **settings: Any,
) -> Tensor:
    """Adversarial examples for the surrogate, to be tried on another model: a black-box attack.

    surrogate: one model, or several that are attacked together through the mean of their log-probabilities.
    attack: ``pgd``, ``fgsm`` or ``apgd``; settings: its other arguments.

    >>> brightness = lambda x: torch.stack([x.mean((1, 2, 3)), torch.zeros(len(x))], 1)
    >>> transfer([brightness, brightness], torch.full((1, 1, 1, 2), 0.5), torch.tensor([0]), radius=0.25)
    tensor([[[[0.2500, 0.2500]]]])
    """
    models = [surrogate] if callable(surrogate) else list(surrogate)
    require(len(models) > 0, "transfer needs at least one surrogate, got none")
    if len(models) == 1:
        return attack(models[0], x, y, radius=radius, **settings)
    mode = settings.pop("mode", "eval")

    def together(images: Tensor) -> Tensor:
        return torch.stack([model(images).float().log_softmax(1) for model in models]).mean(0)

    with ExitStack() as stack:
        for model in models:
            stack.enter_context(borrowed(model, mode))
        return attack(together, x, y, radius=radius, **settings)


@hinted(*BallSettings.__annotations__, kind="setting of the attack")
def noise(
    x: Tensor, *, radius: float, generator: torch.Generator | None = None, **within: Unpack[BallSettings]
) -> Tensor:
    """A random corner of the L∞ ball, or a random direction of full length in the L2 ball, clipped to the range. Not an
    attack, but what every attack must beat.

    >>> import torch
    >>> images = torch.full((1, 1, 2, 2), 0.5)
    >>> moved = noise(images, radius=0.1, generator=torch.Generator().manual_seed(0))
    >>> (moved - images).abs().flatten()
    tensor([0.1000, 0.1000, 0.1000, 0.1000])
    """
    ball = make_ball(x, radius=radius, **within)
    if radius == 0:
        return x.detach().clone()
    with torch.no_grad():
        drawn = torch.randn(x.shape, generator=generator, device=x.device)
        return ball.point(ball.project(ball.start + radius * ball.ascent(drawn)))


@dataclass(frozen=True)
class Preset:
    """One attack with all its settings. step_size None is a single step of the full radius (FGSM)."""

    radius: float
    step_size: float | None = None
    steps: int = 1
    space: Space = "pixel"

    def __call__(
        self, model: Classifier, x: Tensor, y: Tensor, *, scale: Tensor | Sequence[float] | None = None
    ) -> Tensor:
        """scale: the deviation of each channel, for the normalised space."""
        within: BallSettings = {"space": self.space, "scale": scale if self.space == "normalised" else None}
        if self.step_size is None:
            return fgsm(model, x, y, radius=self.radius, **within)
        length = self.step_size
        return pgd(model, x, y, radius=self.radius, steps=self.steps, step_size=length, keep="last", **within)


PRESETS: Mapping[str, Preset] = {
    "alps-table-5": Preset(4 / 255),
    "alps-table-5-normalised": Preset(4 / 255, space="normalised"),
    "alps-table-6": Preset(4 / 255, 1 / 255, 10),
    "alps-table-6-normalised": Preset(4 / 255, 1 / 255, 10, space="normalised"),
}
"""The paper says "radius 4, step 1, 10 steps" and not in which space. Its figures fit 4/255 after normalisation, about
a quarter of that in pixels; most readers would take it as pixels. Both are here; the last point is kept."""
