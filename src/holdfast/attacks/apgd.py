"""APGD: PGD with momentum and step sizes of its own choice (Croce & Hein, 2020, algorithm 1)."""

from __future__ import annotations

import math
from typing import Unpack

import torch
from torch import Tensor

from holdfast.attacks.norms import Ball, BallSettings, make_ball, per_image
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
from holdfast.errors import hinted, require

MOMENTUM = 0.75
RISING = 0.75
"""The step is halved unless more than this share of the steps since the last checkpoint raised the loss."""

EARLY = frozenset({1, 2, 4, 8, 16})
"""Further steps after which an early stop checks: most images fail within a few steps."""


@hinted(*BallSettings.__annotations__, kind="setting of the attack")
def apgd(
    model: Classifier,
    x: Tensor,
    y: Tensor,
    *,
    radius: float,
    steps: int = 100,
    loss: LossName = "ce",
    random_start: bool = True,
    restarts: int = 1,
    target: AttackTarget = None,
    early_stop: bool = False,
    batch_size: int | None = None,
    generator: torch.Generator | None = None,
    mode: Mode = "eval",
    **within: Unpack[BallSettings],
) -> Tensor:
    """Adversarial examples within the radius, without a step size to tune.

    Steps start at twice the radius. At checkpoints that come closer together, a sample whose loss rose too seldom, or
    whose best point has not moved since, halves its step and returns to its best point. All of this is decided per
    sample, on the device. early_stop: drop samples that reached the goal; it synchronises with the device at times.
    The other arguments are those of :func:`pgd`.

    >>> brightness = lambda x: torch.stack([x.mean((1, 2, 3)), torch.zeros(len(x))], 1)
    >>> apgd(brightness, torch.full((1, 1, 1, 2), 0.5), torch.tensor([0]), radius=0.25, random_start=False)
    tensor([[[[0.2500, 0.2500]]]])
    """
    ball = make_ball(x, radius=radius, **within)
    require(math.isfinite(radius), f"radius must be finite for apgd, got {radius}; pgd takes an infinite one")
    require(steps >= 1, f"steps must be >= 1, got {steps}")
    require(restarts >= 1, f"restarts must be >= 1, got {restarts}")
    if radius == 0:
        return x.detach().clone()
    with borrowed(model, mode), torch.no_grad():
        model = prepared(model, x, mode, batch_size=batch_size, early_stop=early_stop)
        goal = make_goal(model, x, y, target=target, loss=loss)
        best = best_of_clean(model, x, goal) if random_start else Best.empty(x)
        for restart in range(restarts):
            start = ball.random(generator) if random_start or restart else ball.start
            _run_apgd(GoalGradient(model, batch_size), ball, goal, best, start, steps, early_stop)
        return best.point


def checkpoints(steps: int) -> list[int]:
    """After how many steps the step size is reconsidered: 22 % of them, then 3 % fewer each time, at least 6 %.

    Shares are rounded down to whole steps, one at least, so that a short run reaches fine steps, too.

    >>> checkpoints(100)
    [22, 41, 57, 70, 80, 87, 93, 99]
    >>> checkpoints(20)[:5], checkpoints(3)
    ([4, 7, 9, 10, 11], [1, 2, 3])
    """
    interval, fewer, least = (max(int(share * steps), 1) for share in (0.22, 0.03, 0.06))
    marks = [interval]
    while marks[-1] + max(interval - fewer, least) <= steps:
        interval = max(interval - fewer, least)
        marks.append(marks[-1] + interval)
    return marks


class ApgdState:
    """Per sample: the position, the best position so far (top), and what decides the step size."""

    def __init__(self, position: Tensor, value: Tensor, gradient: Tensor, step: float) -> None:
        self.position = self.before = self.top = position
        self.value = self.checked_value = self.top_value = value
        self.gradient = self.top_gradient = gradient
        self.step = torch.full_like(value, step, dtype=position.dtype)
        self.rises = torch.zeros_like(value)
        # at the first checkpoint, no earlier one could have kept the step
        self.halved = torch.ones_like(value, dtype=torch.bool)

    def take(self, index: Tensor) -> None:
        """Drop all other samples."""
        vars(self).update({name: held[index] for name, held in vars(self).items()})

    def move(self, ball: Ball, *, momentum: float) -> Tensor:
        direct = ball.project(self.position + per_image(self.step) * ball.ascent(self.gradient))
        if momentum == 1:
            return direct
        carried = momentum * (direct - self.position) + (1 - momentum) * (self.position - self.before)
        return ball.project(self.position + carried)

    def arrive(self, position: Tensor, value: Tensor, gradient: Tensor) -> None:
        self.before, self.position, self.gradient = self.position, position, gradient
        self.rises = self.rises + (value > self.value)
        self.value = value
        higher = value > self.top_value
        self.top = torch.where(per_image(higher), position, self.top)
        self.top_gradient = torch.where(per_image(higher), gradient, self.top_gradient)
        self.top_value = torch.where(higher, value, self.top_value)

    def check(self, interval: int) -> None:
        """Halve the step of samples for which it is too long, and return them to their best point."""
        stuck = ~self.halved & (self.top_value <= self.checked_value)
        self.halved = (self.rises <= RISING * interval) | stuck
        back = per_image(self.halved)
        self.step = torch.where(self.halved, self.step / 2, self.step)
        self.position = torch.where(back, self.top, self.position)
        self.gradient = torch.where(back, self.top_gradient, self.gradient)
        self.value = torch.where(self.halved, self.top_value, self.value)
        self.checked_value = self.top_value
        self.rises = torch.zeros_like(self.rises)


def _run_apgd(
    gradient_of: GoalGradient, ball: Ball, goal: Goal, best: Best, start: Tensor, steps: int, early_stop: bool
) -> None:
    """One run; ``best`` collects what it finds."""
    index = None
    if early_stop and bool(best.reached.any()):
        index = (~best.reached).nonzero().squeeze(1)
        ball, goal, start = ball.take(index), goal.take(index), start[index]
    if len(start) == 0:
        return
    value, reached, gradient = gradient_of(ball.point(start), goal)
    best.update(ball.point(start), value, reached, index)
    state = ApgdState(start, value, gradient, 2 * ball.radius)
    marks, last_mark = set(checkpoints(steps)), 0
    for done in range(1, steps + 1):
        position = state.move(ball, momentum=1 if done == 1 else MOMENTUM)
        point = ball.point(position)
        if done == steps:
            logits = scores(gradient_of.model, point)
            best.update(point, goal.value(logits), goal.reached(logits), index)
            return
        value, reached, gradient = gradient_of(point, goal)
        best.update(point, value, reached, index)
        state.arrive(position, value, gradient)
        if done in marks:
            state.check(done - last_mark)
            last_mark = done
        if early_stop and (done in marks or done in EARLY):
            left = (~(best.reached if index is None else best.reached[index])).nonzero().squeeze(1)
            if len(left) == 0:
                return
            index = left if index is None else index[left]
            ball, goal = ball.take(left), goal.take(left)
            state.take(left)
            gradient_of.take(left)
