"""An attack as one CUDA graph: one launch per batch instead of hundreds per step."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from holdfast.attacks.objectives import Classifier
from holdfast.attacks.pgd import pgd
from holdfast.devices import CapturedCall, capture
from holdfast.errors import require
from holdfast.module_state import frozen_parameters

REHEARSALS = 2
"""Runs before an attack is captured, whose results nobody sees."""


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

    def __call__(self, x: Tensor, y: Tensor) -> Tensor:
        """Attacked images, like x."""
        if x.device.type != "cuda":
            return self._run(x.contiguous(memory_format=self.layout), y)
        replay = self._replay or self._capture(x, y)
        own_x, own_y = replay.inputs
        require(
            len(x) <= len(own_x) and x.shape[1:] == own_x.shape[1:] and x.dtype == own_x.dtype,
            f"this attack was captured for {own_x.dtype} {tuple(own_x.shape)}, got {x.dtype} {tuple(x.shape)}; "
            "make another for it",
        )
        for own, given in ((own_x, x), (own_y, y)):
            own[: len(given)].copy_(given)
            own[len(given) :].copy_(given[:1].expand_as(own[len(given) :]))
        return replay()[: len(x)].clone()

    def _run(self, x: Tensor, y: Tensor) -> Tensor:
        # entered inside the capture, so that each replay casts the current weights
        with torch.autocast(
            x.device.type,
            dtype=self.autocast or torch.bfloat16,
            enabled=self.autocast is not None,
            cache_enabled=False,
        ):
            return self.attack(self._called, x, y, **self.settings)

    def _capture(self, x: Tensor, y: Tensor) -> CapturedCall[Tensor]:
        if self.settings.get("scale") is not None:  # a graph cannot fetch it from the host
            self.settings["scale"] = torch.as_tensor(self.settings["scale"], device=x.device)
        generator = self.settings.get("generator")
        modules = [self.model] if isinstance(self.model, nn.Module) else []
        with frozen_parameters(*modules):  # a compiled backward pass would compute all their gradients otherwise
            self._replay = capture(
                self._run,
                x.detach().clone(memory_format=self.layout),
                y.clone(),
                device=x.device,
                generators=() if generator is None else (generator,),
                rehearsals=REHEARSALS,
            )
        return self._replay
