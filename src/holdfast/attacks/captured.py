"""Attacks at the speed of the GPU: one CUDA graph per batch, and PGD over a whole data set as a queue.

Launching hundreds of kernels per step from the host, and shrinking batches when images are done, both cost more than
the computation; a :class:`CapturedAttack` avoids the first, :class:`QueuedPgd` both.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Unpack

import torch
from torch import Tensor

from holdfast.attacks.norms import Ball, BallSettings, check_names, make_ball, per_image
from holdfast.attacks.objectives import (
    Best,
    Classifier,
    Goal,
    GoalGradient,
    LossName,
    Mode,
    borrowed,
    check_examples,
    check_labels,
    scores,
)
from holdfast.attacks.pgd import default_step, pgd
from holdfast.devices import CapturedCall, autocast, capture, fetch
from holdfast.errors import require
from holdfast.module_state import frozen_parameters

REHEARSALS = 2
"""Runs or steps before one is captured, whose results are dropped."""
CHECK_EVERY = 4
"""Steps of a queue between two checks of how many images are done."""


class CapturedAttack:
    """An attack on batches of one size, captured on its first call and replayed afterwards.

    attack: any function of this package; settings: its arguments. model: a module or callable on a GPU; its weights
    are read in place, so later updates of them count. autocast: the type to compute in, or None.
    compile: pass the model through torch.compile; ``compile_mode`` is its mode. channels_last: lay images out so.
    A shorter batch is filled up with copies of its first image. On a CPU nothing is captured: the attack just runs.

    >>> brightness = lambda x: torch.stack([x.mean((1, 2, 3)), torch.zeros(len(x))], 1)
    >>> attack = CapturedAttack(brightness, attack=pgd, radius=0.25, steps=2)
    >>> attack(torch.full((1, 1, 1, 2), 0.5), torch.tensor([0]))
    tensor([[[[0.2500, 0.2500]]]])
    """

    def __init__(
        self,
        model: Classifier,
        *,
        attack: Callable[..., Tensor] = pgd,
        autocast: torch.dtype | None = None,
        compile: bool = False,
        compile_mode: str | None = None,
        channels_last: bool = False,
        **settings: Any,
    ) -> None:
        require(
            not settings.get("early_stop", False),
            "early_stop synchronises with the host and cannot be captured; leave it out, or use QueuedPgd",
        )
        require(autocast in (None, torch.bfloat16, torch.float16), f"autocast must be bf16 or fp16, got {autocast}")
        self.model, self.attack, self.autocast, self.settings = model, attack, autocast, settings
        self.layout = torch.channels_last if channels_last else torch.contiguous_format
        self._called: Any = torch.compile(model, mode=compile_mode, dynamic=False) if compile else model
        self._replay: CapturedCall[Tensor] | None = None
        self._classes = 0

    def __call__(self, x: Tensor, y: Tensor) -> Tensor:
        """Attacked images, like x. Images with NaN and labels out of range are refused in every batch; the device goes
        on to the attack meanwhile, so the check costs it no pause."""
        if x.device.type != "cuda" or len(x) == 0:
            return self._run(x.contiguous(memory_format=self.layout), y)
        replay = self._replay or self._capture(x, y)
        own_x, own_y = replay.inputs
        require(
            len(x) <= len(own_x) and x.shape[1:] == own_x.shape[1:] and x.dtype == own_x.dtype,
            f"this attack was captured for {own_x.dtype} {tuple(own_x.shape)}, got {x.dtype} {tuple(x.shape)}; "
            "make another for it",
        )
        require(y.shape == x.shape[:1], f"y must be classes (B,), one per image, got {tuple(y.shape)} for {len(x)}")
        usable = y.clamp(0, self._classes - 1)  # a label out of range would end the CUDA context
        refused = fetch(~torch.isfinite(x).all() | (usable != y).any())
        for own, given in ((own_x, x), (own_y, usable)):
            own[: len(given)].copy_(given)
            own[len(given) :].copy_(given[:1].expand_as(own[len(given) :]))
        result = replay()[: len(x)].clone()
        if bool(refused()):
            check_examples(x, y)
            check_labels(y, self._classes)
        return result

    def _run(self, x: Tensor, y: Tensor) -> Tensor:
        with autocast(self.autocast, x.device):
            return self.attack(self._called, x, y, **self.settings)

    def _capture(self, x: Tensor, y: Tensor) -> CapturedCall[Tensor]:
        if self.settings.get("scale") is not None:  # a graph cannot fetch it from the host
            self.settings["scale"] = torch.as_tensor(self.settings["scale"], device=x.device)
        generator = self.settings.get("generator")
        # a compiled backward pass would compute the gradients of all parameters otherwise
        with frozen_parameters(self.model):
            own, generators = x.detach().clone(memory_format=self.layout), () if generator is None else (generator,)
            with borrowed(self.model, self.settings.get("mode", "eval")), autocast(self.autocast, x.device):
                self._classes = scores(self.model, own).shape[1]
            how: dict[str, Any] = {"device": x.device, "generators": generators, "rehearsals": REHEARSALS}
            self._replay = capture(self._run, own, y.clone(), **how)
        return self._replay


class QueuedPgd:
    """Untargeted PGD from the image itself, with early stop at the speed of full batches.

    Early stop drops images once they are misclassified, which saves most steps on an undefended model; but the batch
    shrinks, and each time it does the host waits for the device. Here the batch keeps its size: every slot
    counts its own steps, and takes the next image on the device when its own is done. One step is one CUDA graph; on
    a CPU it just runs. An image passes through the same points as under ``pgd(early_stop=True)``.

    model: a module or callable. batch: how many images at a time. beyond: how far (in logits) the label has to be
    passed before an image counts as misclassified; above 0, rounding in bf16 does not decide. autocast, compile,
    channels_last: as in ``CapturedAttack``; the others as in ``pgd``.

    >>> brightness = lambda x: torch.stack([x.mean((1, 2, 3)) - 0.4, torch.zeros(len(x))], 1)
    >>> attack = QueuedPgd(brightness, radius=0.25, step_size=0.125, steps=2, batch=2)
    >>> attack(torch.tensor([0.3, 0.5, 0.9]).view(3, 1, 1, 1), torch.tensor([0, 0, 0])).flatten()
    tensor([0.3000, 0.3750, 0.6500])
    """

    def __init__(
        self,
        model: Classifier,
        *,
        radius: float,
        step_size: float | None = None,
        steps: int = 10,
        loss: LossName = "ce",
        mode: Mode = "eval",
        batch: int = 1000,
        beyond: float = 0.0,
        autocast: torch.dtype | None = None,
        compile: bool = False,
        channels_last: bool = False,
        **within: Unpack[BallSettings],
    ) -> None:
        require(steps >= 1, f"steps must be >= 1, got {steps}")
        require(batch >= 1, f"batch must be >= 1, got {batch}")
        require(beyond >= 0, f"beyond must be >= 0, got {beyond}")
        require(radius >= 0, f"radius must be >= 0, got {radius}")
        check_names(within)
        self.model, self.mode, self.loss, self.beyond = model, mode, loss, beyond
        self.radius, self.within = radius, within
        self.length = default_step(radius, steps) if step_size is None else step_size
        self.steps, self.batch, self.autocast = steps, batch, autocast
        self.layout = torch.channels_last if channels_last else torch.contiguous_format
        self._called: Classifier = torch.compile(model, dynamic=False) if compile else model
        self._queue: _Queue | None = None

    def __call__(self, x: Tensor, y: Tensor) -> Tensor:
        """Attacked images, like x."""
        check_examples(x, y)
        if len(x) == 0 or self.radius == 0:
            return x.detach().clone()
        with borrowed(self.model, self.mode), frozen_parameters(self.model), torch.no_grad():
            if self._queue is None or not self._queue.fits(x):
                self._queue = _Queue(self, x, y)
            return self._queue.run(x, y)


class _Queue:
    """The tensors of one size of set, and the graph of a step over them.

    There is one more row than there are images: slots that have none left work on it, and the result is never read.
    """

    def __init__(self, attack: QueuedPgd, x: Tensor, y: Tensor) -> None:
        self.attack, self.count = attack, len(x)
        width = min(attack.batch, self.count)
        self.balls, self.y = self._balls(x), _one_more(y)
        self.out = self.balls.centre.clone()
        self.slot, self.age = (torch.empty(width, dtype=torch.long, device=x.device) for _ in range(2))
        self.next, self.done = (torch.empty((), dtype=torch.long, device=x.device) for _ in range(2))
        self.position = self.balls.start[:width].clone(memory_format=attack.layout)
        self.best = Best.empty(self.balls.centre[:width])
        self.replay: CapturedCall[None] | None = None

    def fits(self, x: Tensor) -> bool:
        centre = self.balls.centre
        return len(x) == self.count and x[0].shape == centre[0].shape and x.dtype == centre.dtype

    def run(self, x: Tensor, y: Tensor) -> Tensor:
        fresh = self._balls(x)
        for name in ("centre", "low", "high"):
            getattr(self.balls, name).copy_(getattr(fresh, name))
        self.y.copy_(_one_more(y))
        step: Callable[[], None] = self._step
        if x.device.type == "cuda":
            if self.replay is None:
                self._begin()
                self.replay = capture(self._step, device=x.device, rehearsals=REHEARSALS)
            step = self.replay
        self._begin()
        while int(self.done) < self.count:
            for _ in range(CHECK_EVERY):
                step()
        return self.out[:-1].clone()

    def _balls(self, x: Tensor) -> Ball:
        return make_ball(_one_more(x), radius=self.attack.radius, **self.attack.within)

    def _begin(self) -> None:
        """The first images in the slots, the rest waiting."""
        self.slot.copy_(torch.arange(len(self.slot), device=self.slot.device))
        self.age.zero_()
        self.next.fill_(len(self.slot))
        self.done.zero_()
        self.position.copy_(self.balls.start[: len(self.slot)])
        self._put_best(Best.empty(self.balls.centre[: len(self.slot)]))

    def _step(self) -> None:
        """One step of every slot; what is done goes out, and the next comes in."""
        attack = self.attack
        ball, goal = self.balls.take(self.slot), Goal(self.y[self.slot], attack.loss, beyond=attack.beyond)
        point = ball.point(self.position)
        with autocast(attack.autocast, point.device):
            value, reached, gradient = GoalGradient(attack._called)(point, goal)
        best = Best(self.best.point, self.best.value, self.best.reached)
        best.update(point, value, reached)
        moved = ball.project(self.position + attack.length * ball.ascent(gradient))

        over = reached | (self.age >= attack.steps)
        self.out.index_copy_(0, torch.where(over, self.slot, self.count), best.point)
        self.done += (over & (self.slot < self.count)).sum()
        following = (self.next + over.cumsum(0) - 1).clamp(max=self.count)
        self.next += over.sum()
        self.slot.copy_(torch.where(over, following, self.slot))
        self.age.copy_(torch.where(over, 0, self.age + 1))
        self.position.copy_(torch.where(per_image(over), self.balls.start[self.slot], moved))
        best.value = torch.where(over, -torch.inf, best.value)
        best.reached = best.reached & ~over
        self._put_best(best)

    def _put_best(self, best: Best) -> None:
        for own, given in zip(vars(self.best).values(), vars(best).values(), strict=True):
            own.copy_(given)


def _one_more(rows: Tensor) -> Tensor:
    return torch.cat([rows, rows[:1]])
