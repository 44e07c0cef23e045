"""An attack as one CUDA graph: the host launches once a batch, not some hundred times a step."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from holdfast.attacks.common import Model
from holdfast.attacks.pgd import pgd
from holdfast.errors import require

WARM_UP = 2


class CapturedAttack:
    """An attack on batches of one size, captured on its first call and replayed afterwards.

    attack: any function of this package; settings: its arguments. model: a module or callable on a GPU; its weights
    are read where they lie, so an update in place is seen. autocast: the type to compute in, or None.
    compile: pass the model through torch.compile; ``compile_mode`` is its mode. channels_last: lay images out so.
    A shorter batch is filled up with copies of its first image. On a CPU nothing is captured: the attack just runs.

    >>> brightness = lambda x: torch.stack([x.mean((1, 2, 3)), torch.zeros(len(x))], 1)
    >>> attack = CapturedAttack(brightness, attack=pgd, radius=0.25, steps=2)
    >>> attack(torch.full((1, 1, 1, 2), 0.5), torch.tensor([0]))
    tensor([[[[0.2500, 0.2500]]]])
    """

    def __init__(
        self,
        model: Model,
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
            "early_stop asks the host and cannot be captured; leave it out, or use QueuedPgd",
        )
        require(autocast in (None, torch.bfloat16, torch.float16), f"autocast must be bf16 or fp16, got {autocast}")
        self.model, self.attack, self.autocast, self.settings = model, attack, autocast, settings
        self.layout = torch.channels_last if channels_last else torch.contiguous_format
        self._called: Any = torch.compile(model, mode=compile_mode, dynamic=False) if compile else model
        self._graph: torch.cuda.CUDAGraph | None = None

    def __call__(self, x: Tensor, y: Tensor) -> Tensor:
        """Attacked images, like x."""
        if x.device.type != "cuda":
            return self._run(x.contiguous(memory_format=self.layout), y)
        if self._graph is None:
            self._capture(x, y)
        size = len(self._x)
        require(
            len(x) <= size and x.shape[1:] == self._x.shape[1:] and x.dtype == self._x.dtype,
            f"this attack was captured for {self._x.dtype} {tuple(self._x.shape)}, got {x.dtype} {tuple(x.shape)}; "
            "make another for it",
        )
        self._x[: len(x)].copy_(x)
        self._y[: len(y)].copy_(y)
        if len(x) < size:
            self._x[len(x) :].copy_(x[:1].expand_as(self._x[len(x) :]))
            self._y[len(y) :].copy_(y[:1].expand_as(self._y[len(y) :]))
        assert self._graph is not None
        self._graph.replay()
        return self._out[: len(x)].clone()

    def _run(self, x: Tensor, y: Tensor) -> Tensor:
        # entered inside the capture: each replay casts the weights as they are then
        with torch.autocast(
            x.device.type,
            dtype=self.autocast or torch.bfloat16,
            enabled=self.autocast is not None,
            cache_enabled=False,
        ):
            return self.attack(self._called, x, y, **self.settings)

    def _capture(self, x: Tensor, y: Tensor) -> None:
        self._x = x.detach().clone(memory_format=self.layout)
        self._y = y.clone()
        if self.settings.get("scale") is not None:  # a graph cannot fetch it from the host
            self.settings["scale"] = torch.as_tensor(self.settings["scale"], device=x.device)
        graph, generator = torch.cuda.CUDAGraph(), self.settings.get("generator")
        if generator is not None:
            graph.register_generator_state(generator)
        with _constant(self.model):
            stream = torch.cuda.Stream(x.device)  # type: ignore[no-untyped-call]
            stream.wait_stream(torch.cuda.current_stream(x.device))
            with torch.cuda.stream(stream):
                for _ in range(WARM_UP):
                    self._run(self._x, self._y)
            torch.cuda.current_stream(x.device).wait_stream(stream)
            with torch.cuda.graph(graph):
                self._out = self._run(self._x, self._y)
        self._graph = graph


@contextmanager
def _constant(model: Model) -> Iterator[None]:
    """Parameters that ask for no gradient for the time: a compiled backward pass would compute them all otherwise."""
    if not isinstance(model, nn.Module):
        yield
        return
    asking = [p for p in model.parameters() if p.requires_grad]
    for p in asking:
        p.requires_grad_(False)
    try:
        yield
    finally:
        for p in asking:
            p.requires_grad_(True)
