"""Bias-conflicting neighbours (BiasAdv): images that a biased model gets wrong and the debiased one does not; and
copies of networks that such attacks run on during training."""

from __future__ import annotations

import copy
from collections.abc import Callable
from functools import cache
from typing import Unpack
from weakref import WeakKeyDictionary

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from holdfast.attacks.norms import Ball, BallSettings, make_ball
from holdfast.attacks.objectives import Classifier, Mode, borrowed, check_answers, check_examples
from holdfast.attacks.pgd import default_step
from holdfast.devices import side_by_side
from holdfast.errors import hinted, require
from holdfast.module_state import frozen_parameters


@hinted(*BallSettings.__annotations__, kind="setting of the attack")
def bias_adversarial(
    x: Tensor,
    y: Tensor,
    model: Classifier,
    biased: Classifier,
    *,
    radius: float,
    lam: float,
    steps: int = 5,
    step_size: float | None = None,
    random_start: bool = False,
    mode: Mode = "eval",
    compile: bool = False,
    generator: torch.Generator | None = None,
    **within: Unpack[BallSettings],
) -> Tensor:
    """Images within the radius at which L(biased) − λ·L(model) is as large as PGD finds it (BiasAdv, eq. 3).

    x: images (B, C, H, W) in [0, 1]. y: (B,) classes. radius: in pixels, or in units of ``scale`` with
    ``space="normalised"``. step_size, within: as in ``pgd``, but for an "l2" ball by default.
    mode: "eval" runs both in evaluation mode; "as-is" in the modes they are in, with their statistics restored.
    compile: pass the arithmetic between two gradients through torch.compile; the caller compiles the models.
    The result is detached, both models are left unchanged, and nothing synchronises with the device.

    >>> import torch
    >>> images, labels = torch.full((1, 1, 2, 2), 0.5), torch.tensor([0])
    >>> brighter = lambda x: torch.stack([x.mean((1, 2, 3)), -x.mean((1, 2, 3))], 1)  # both classes by brightness
    >>> darker = lambda x: -brighter(x)
    >>> moved = bias_adversarial(images, labels, darker, brighter, radius=0.2, lam=0.5)
    >>> bool(moved.mean() < 0.5), round(float((moved - images).norm()), 3)  # away from what the biased model knows
    (True, 0.2)
    """
    require(steps >= 1, f"steps must be >= 1, got {steps}")
    require(lam >= 0, f"lam must be >= 0, got {lam}")
    if x.is_cuda:  # to look at values there would wait for the device
        within.setdefault("bounds", (0.0, 1.0))
    else:
        check_examples(x, y)
    within.setdefault("norm", "l2")
    ball = make_ball(x, radius=radius, **within)
    if radius == 0:
        return x.detach().clone()
    length = default_step(radius, steps) if step_size is None else step_size
    with borrowed(model, mode), borrowed(biased, mode), frozen_parameters(model, biased), torch.no_grad():
        position = ball.random(generator) if random_start else ball.start
        move = _compiled_move() if compile else _move
        for _ in range(steps):
            away, own = _slopes(ball.point(position), y, model, biased, lam)
            position = move(ball, position, away, own, lam, length)
        return ball.point(position)


def objective(x: Tensor, y: Tensor, model: Classifier, biased: Classifier, *, lam: float) -> Tensor:
    """(B,) L(biased) − λ·L(model): what :func:`bias_adversarial` maximises."""
    value = _loss(biased(x), y)
    return value - lam * _loss(model(x), y) if lam else value


def _slopes(x: Tensor, y: Tensor, model: Classifier, biased: Classifier, lam: float) -> tuple[Tensor, Tensor | None]:
    """Gradients of both losses; the models are independent, so the two run side by side."""
    if not lam:
        return _gradient(x, y, biased), None
    return side_by_side(lambda: _gradient(x, y, biased), lambda: _gradient(x, y, model), x.device)


def _move(ball: Ball, position: Tensor, away: Tensor, own: Tensor | None, lam: float, length: float) -> Tensor:
    return ball.project(position + length * ball.ascent(away if own is None else away - lam * own))


@cache
def _compiled_move() -> Callable[..., Tensor]:
    """Fuses some forty small kernels of rounding and projection into a few."""
    return torch.compile(_move, dynamic=False)


def _gradient(x: Tensor, y: Tensor, model: Classifier) -> Tensor:
    with torch.enable_grad():
        x = x.detach().requires_grad_()
        (gradient,) = torch.autograd.grad(_loss(model(x), y).sum(), x)
    return gradient


def _loss(logits: Tensor, y: Tensor) -> Tensor:
    if not logits.is_cuda:
        check_answers(logits.detach(), y, nan=True)
    return F.cross_entropy(logits.to(torch.promote_types(logits.dtype, torch.float32)), y, reduction="none")


CAST = (nn.Conv1d, nn.Conv2d, nn.Conv3d, nn.Linear)
"""Layers whose weights autocast casts, whatever else the network does."""


class EvalCopy:
    """A network that follows another's weights, in evaluation mode and without gradients of its own.

    Under autocast every pass casts every weight; an attack of S steps casts them S times. The copy holds the casts of
    convolutions and linear layers, made by :meth:`refresh` in one kernel, and shares all other tensors with the
    original, so that it gives the very numbers the original gives in evaluation mode under autocast.
    """

    def __init__(self, original: nn.Module, dtype: torch.dtype) -> None:
        network = getattr(original, "_orig_mod", original)
        cast = {p for m in network.modules() if isinstance(m, CAST) for p in m.parameters(recurse=False)}
        self._from: list[Tensor] = [p for p in network.parameters() if p in cast and p.dtype == torch.float32]
        self._to: list[Tensor] = [p.detach().to(dtype) for p in self._from]
        ours = dict(zip(self._from, self._to, strict=True))
        memo: dict[int, object] = {id(b): b for b in network.buffers()}
        for p in network.parameters():
            memo[id(p)] = nn.Parameter(ours.get(p, p.detach()), requires_grad=False)
        self.network: nn.Module = copy.deepcopy(network, memo).eval()
        if network is not original or network._compiled_call_impl is not None:
            self.network.compile(dynamic=False)

    @torch.no_grad()
    def refresh(self) -> nn.Module:
        """The copy with the current weights."""
        torch._foreach_copy_(self._to, self._from)
        return self.network


class EvalCopies:
    def __init__(self) -> None:
        self._made: WeakKeyDictionary[nn.Module, EvalCopy] = WeakKeyDictionary()

    def of(self, network: nn.Module, device: torch.device) -> nn.Module:
        """The network's copy with its current weights; the network itself where nothing is cast."""
        if not torch.is_autocast_enabled(device.type):
            return network
        if network not in self._made:
            self._made[network] = EvalCopy(network, torch.get_autocast_dtype(device.type))
        return self._made[network].refresh()
