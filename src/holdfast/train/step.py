"""One training step: views, gradients, ascent, descent. Run eagerly, or captured as one CUDA graph."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from holdfast.data.augment import Augment
from holdfast.errors import HoldfastError
from holdfast.methods import Method
from holdfast.optim import trained_parameters
from holdfast.rng import Generators
from holdfast.train.average import WeightAverage
from holdfast.train.meters import Meters
from holdfast.types import Batch, Views

WARM_UP = 3
"""Eager steps of a batch size before it is captured: kernels are chosen and optimiser states made in them."""


@dataclass(frozen=True)
class Step:
    """Everything a step needs, and the step itself. Nothing in it waits for the device."""

    model: nn.Module
    method: Method
    optimizer: Optimizer
    auxiliary_optimizer: Optimizer | None
    augment: Augment
    rng: Generators
    meters: Meters
    autocast: Callable[[], AbstractContextManager[object]]
    scaler: torch.amp.GradScaler
    clip: float | None = None
    accumulate: int = 1
    memory_format: torch.memory_format = torch.contiguous_format
    average: WeightAverage | None = None

    def __call__(self, raw: Batch) -> None:
        x = self.augment(raw.x, self.rng["augment"]).contiguous(memory_format=self.memory_format)
        parts = raw.with_images(x).split(self.accumulate)
        shares = [len(part) / len(raw) for part in parts]
        with self.autocast():
            drawn = [self.method.views(part, model=self.model, rng=self.rng) for part in parts]
        self._train_auxiliary(drawn, shares)
        loss, logits = self._gradients(drawn, shares)
        self._descend(self.optimizer)
        self.scaler.update()
        if self.average is not None:
            self.average.update()
        self.meters.update(loss, logits, raw.y)

    def _gradients(self, drawn: Sequence[Views], shares: Sequence[float]) -> tuple[Tensor, Tensor]:
        """Leave the gradient of the whole batch in the parameters; return its loss and logits."""
        self.optimizer.zero_grad(set_to_none=True)
        losses, logits = [], []
        for views, share in zip(drawn, shares, strict=True):
            with self.autocast():
                loss, out = self.method.loss(self.model, views)
            self._backward(loss * share)
            losses.append(loss.detach() * share)
            logits.append(out.detach())
        return torch.stack(losses).sum(), torch.cat(logits)

    def _train_auxiliary(self, drawn: Sequence[Views], shares: Sequence[float]) -> None:
        if self.auxiliary_optimizer is None:
            return
        terms = [(v.auxiliary_loss, share) for v, share in zip(drawn, shares, strict=True)]
        if all(loss is None for loss, _ in terms):
            return
        self.auxiliary_optimizer.zero_grad(set_to_none=True)
        for loss, share in terms:
            if loss is not None:
                self._backward(loss * share)
        self._descend(self.auxiliary_optimizer)

    def _backward(self, loss: Tensor) -> None:
        self.scaler.scale(loss).backward()  # type: ignore[no-untyped-call]

    def _descend(self, optimizer: Optimizer) -> None:
        if self.clip is not None:
            self.scaler.unscale_(optimizer)
            torch.nn.utils.clip_grad_norm_(trained_parameters(optimizer), self.clip)
        self.scaler.step(optimizer)


class CapturedStep:
    """A step as CUDA graphs, one for each batch size that comes up.

    The first steps of a size run eagerly: they are ordinary training steps and serve as the warm-up. Capturing
    runs nothing, so eager and captured training are the same sequence of updates. Where a step cannot be
    captured, ``note`` hears why and training goes on eagerly; without ``note`` the failure is an error.
    """

    def __init__(self, step: Step, note: Callable[[str], None] | None) -> None:
        self.step = step
        self.note = note
        self._failed = False
        self._seen: Counter[int] = Counter()
        self._graphs: dict[int, tuple[torch.cuda.CUDAGraph, Batch]] = {}

    def __call__(self, raw: Batch) -> None:
        size = len(raw)
        if self._failed or self._seen[size] < WARM_UP:
            self._seen[size] += 1
            self.step(raw)
            return
        if size not in self._graphs:
            try:
                self._graphs[size] = self._capture(raw)
            except RuntimeError as error:
                self._give_up(error)
                self.step(raw)
                return
        graph, inputs = self._graphs[size]
        for buffer, value in zip(inputs.tensors(), raw.tensors(), strict=True):
            buffer.copy_(value)
        graph.replay()

    def _capture(self, raw: Batch) -> tuple[torch.cuda.CUDAGraph, Batch]:
        inputs = Batch(*(t.clone() for t in raw.tensors()))
        graph = torch.cuda.CUDAGraph()
        for generator in self.step.rng.values():
            graph.register_generator_state(generator)
        with torch.cuda.graph(graph, stream=torch.cuda.current_stream()):
            self.step(inputs)
        return graph, inputs

    def _give_up(self, error: RuntimeError) -> None:
        reason = str(error).splitlines()[0]
        if self.note is None:
            raise HoldfastError(f"the step cannot be captured: {reason}; use --capture off") from error
        self.note(f"the step cannot be captured ({reason}); it runs eagerly")
        self._failed = True
