"""Square: random search over square patches, from scores alone (Andriushchenko et al., 2020).

It needs no gradients, so masked gradients cannot fool it: where it finds more errors than PGD, gradients mislead.
Each sample draws its own places and signs; nothing synchronises with the host.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import partial
from typing import Unpack

import torch
from torch import Tensor

from holdfast.attacks.norms import Ball, BallSettings, make_ball, per_image
from holdfast.attacks.objectives import (
    AttackTarget,
    Classifier,
    LossName,
    Mode,
    best_of_clean,
    borrowed,
    make_goal,
    prepared,
    scores,
)
from holdfast.errors import hinted, require

Draw = Callable[..., Tensor]
"""torch.randint with the generator of the attack, on the device of the images."""
SHRINK_AT = (10, 50, 200, 500, 1000, 2000, 4000, 6000, 8000)
"""Queries, of 10,000, after which the area of the patch is halved."""


@hinted(*BallSettings.__annotations__, kind="setting of the attack")
def square(
    model: Classifier,
    x: Tensor,
    y: Tensor,
    *,
    radius: float,
    queries: int = 1000,
    area: float = 0.8,
    target: AttackTarget = None,
    loss: LossName = "margin",
    early_stop: bool = False,
    batch_size: int | None = None,
    generator: torch.Generator | None = None,
    mode: Mode = "eval",
    **within: Unpack[BallSettings],
) -> Tensor:
    """Adversarial examples within the radius, by random search over square patches.

    queries: forward passes. area: share of the image that the first patch covers; it shrinks as queries are spent.
    The other arguments are those of :func:`pgd`.

    >>> brightness = lambda x: torch.stack([x.mean((1, 2, 3)), torch.zeros(len(x))], 1)
    >>> draw = torch.Generator().manual_seed(0)
    >>> found = square(brightness, torch.full((1, 1, 4, 4), 0.5), torch.tensor([0]), radius=0.25, generator=draw)
    >>> (found - 0.5).abs().max()
    tensor(0.2500)
    """
    ball = make_ball(x, radius=radius, **within)
    require(math.isfinite(radius), f"radius must be finite for square, got {radius}")
    require(queries >= 1, f"queries must be >= 1, got {queries}")
    require(0 < area <= 1, f"area must be in (0, 1], got {area}")
    if radius == 0:
        return x.detach().clone()
    draw = partial(torch.randint, generator=generator, device=x.device)
    propose = _linf_patch if ball.norm == "linf" else _l2_patch
    with borrowed(model, mode), torch.no_grad():
        model = prepared(model, x, mode, batch_size=batch_size, early_stop=early_stop)
        goal = make_goal(model, x, y, target=target, loss=loss)
        best, index = best_of_clean(model, x, goal), None
        position = ball.project(ball.start + (_stripes if ball.norm == "linf" else _tiles)(ball, draw))
        point = ball.point(position)
        logits = scores(model, point)
        value, reached = goal.value(logits), goal.reached(logits)
        best.update(point, value, reached)
        for query in range(1, queries):
            if early_stop and bool(reached.any()):
                left = (~reached).nonzero().squeeze(1)
                index = left if index is None else index[left]
                ball, goal = ball.take(left), goal.take(left)
                position, value, reached = position[left], value[left], reached[left]
            if len(position) == 0:
                break
            side = patch_side(query, queries, area, x.shape[-2:], odd=ball.norm == "l2")
            moved = ball.project(propose(ball, position, side, draw))
            point = ball.point(moved)
            logits = scores(model, point)
            new, hit = goal.value(logits), goal.reached(logits)
            better = (new > value) & ~(reached & ~hit)
            position = torch.where(per_image(better), moved, position)
            value, reached = torch.where(better, new, value), reached | hit
            best.update(point, new, hit, index)
        return best.point


def patch_side(query: int, queries: int, area: float, size: Sequence[int], *, odd: bool = False) -> int:
    """Side of the patch at a query.

    >>> [patch_side(q, 1000, 0.8, (32, 32)) for q in (0, 1, 5, 100, 999)]
    [29, 20, 14, 5, 1]
    """
    spent = query * 10_000 / queries
    share = area / 2 ** sum(spent >= mark for mark in SHRINK_AT)
    side = max(round(math.sqrt(share * size[0] * size[1])), 1)
    if odd:
        side = max(side + (side + 1) % 2, 3)
    return min(side, *size)


def _signs(draw: Draw, *shape: int, dtype: torch.dtype) -> Tensor:
    return (2 * draw(2, shape) - 1).to(dtype)


def _stripes(ball: Ball, draw: Draw) -> Tensor:
    """Vertical stripes of full height, each at plus or minus the radius."""
    n, channels, _, width = ball.low.shape
    return _signs(draw, n, channels, 1, width, dtype=ball.low.dtype) * ball.radius * ball.scale


def _linf_patch(ball: Ball, position: Tensor, side: int, draw: Draw) -> Tensor:
    """One patch per image set to plus or minus the radius, by channel."""
    n, channels, height, width = position.shape
    top, left = draw(height - side + 1, (n, 1)), draw(width - side + 1, (n, 1))
    rows, columns = torch.arange(height, device=position.device), torch.arange(width, device=position.device)
    inside = ((rows >= top) & (rows < top + side))[:, :, None] & ((columns >= left) & (columns < left + side))[:, None]
    value = _signs(draw, n, channels, 1, 1, dtype=position.dtype) * ball.radius * ball.scale
    return torch.where(inside[:, None], ball.start + value, position)


def bumps(side: int, *, device: torch.device, dtype: torch.dtype) -> Tensor:
    """(side, side) of length 1: a hill on the left half and a pit on the right, steep at their middles.

    >>> bumps(3, device=torch.device("cpu"), dtype=torch.float32).sum() < 0
    tensor(True)
    """

    def hill(height: int, width: int) -> Tensor:
        n = height // 2
        rows = torch.arange(1, height + 1, device=device)[:, None]
        columns = torch.arange(1, width + 1, device=device)
        distance = torch.maximum((rows - n - 1).abs(), (columns - width // 2 - 1).abs())
        heights = (1 / (n + 1 - torch.arange(n + 1, device=device)).to(dtype) ** 2).cumsum(0)
        return heights[(n - distance).clamp(min=0)] * (distance <= n)

    half = side // 2
    shape = hill(side, side) if half == 0 else torch.cat([hill(side, half), -hill(side, side - half)], 1)
    length: Tensor = torch.linalg.vector_norm(shape)
    return shape / length


def _tiles(ball: Ball, draw: Draw) -> Tensor:
    """A grid of bumps with random signs, of the length of the radius."""
    n, channels, height, width = ball.low.shape
    side = max(min(height, width) // 5, 1)
    tile = bumps(side, device=ball.low.device, dtype=ball.low.dtype)
    rows, columns = math.ceil(height / side), math.ceil(width / side)
    signs = _signs(draw, n, channels, rows, columns, dtype=ball.low.dtype)
    grid = signs.repeat_interleave(side, 2).repeat_interleave(side, 3) * tile.repeat(rows, columns)
    grid = grid[:, :, :height, :width]
    length: Tensor = torch.linalg.vector_norm(grid, dim=(1, 2, 3), keepdim=True)
    return grid / length * ball.radius * ball.scale


def _l2_patch(ball: Ball, position: Tensor, side: int, draw: Draw) -> Tensor:
    """Take the length that two patches of the perturbation hold, and what is left of the radius, into one of them."""
    n, channels, height, width = position.shape
    moved = (position - ball.start) / ball.scale
    tall, wide = height - side + 1, width - side + 1
    first, second = (_window(draw(tall, (n, 1)), draw(wide, (n, 1)), side, channels) for _ in range(2))
    unused = (ball.radius**2 - moved.square().sum((1, 2, 3), keepdim=True)).clamp(min=0)
    either = torch.zeros_like(moved).index_put(first, moved.new_ones(())).index_put(second, moved.new_ones(()))
    room = ((moved * either).square().sum((2, 3), keepdim=True) + unused / channels).sqrt()

    shape = bumps(side, device=position.device, dtype=position.dtype)
    turned = draw(2, (n, 1, 1, 1)) == 1
    shape = torch.where(turned, shape.T, shape) * _signs(draw, n, channels, 1, 1, dtype=position.dtype)
    old = moved[first]
    length = torch.linalg.vector_norm(old, dim=(2, 3), keepdim=True)
    new = shape + old / torch.where(length > 0, length, 1)
    new = new / torch.linalg.vector_norm(new, dim=(2, 3), keepdim=True).clamp(min=1e-12) * room
    moved = moved.index_put(second, moved.new_zeros(())).index_put(first, new)
    return ball.start + moved * ball.scale


def _window(top: Tensor, left: Tensor, side: int, channels: int) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Indices (B, C, side, side) of one patch per image."""
    offset = torch.arange(side, device=top.device)
    image = torch.arange(len(top), device=top.device).view(-1, 1, 1, 1)
    channel = torch.arange(channels, device=top.device).view(1, -1, 1, 1)
    return image, channel, (top + offset).view(-1, 1, side, 1), (left + offset).view(-1, 1, 1, side)
