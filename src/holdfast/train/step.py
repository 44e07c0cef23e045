"""One training step: views, gradients, ascent, descent. Run eagerly, or captured as one CUDA graph."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from holdfast.augment.basic import Augment, to_float
from holdfast.devices import ahead
from holdfast.errors import HoldfastError
from holdfast.methods import Method
from holdfast.module_state import frozen_statistics
from holdfast.optim import SAM, trained_parameters
from holdfast.rng import Generators
from holdfast.train.ascent_directions import DIRECTIONS
from holdfast.train.average import WeightAverage
from holdfast.train.meters import Meters
from holdfast.types import Batch, Views

WARM_UP = 3
"""Eager steps of a batch size before it is captured: kernels are chosen and optimiser states made in them."""

Drawn = list[tuple[Views, float]]
"""Views of each part of a batch, with the part's share of the whole."""


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
    whole: Callable[[], Iterable[Batch]]
    whole_size: int
    direction: str = "batch"
    clip: float | None = None
    accumulate: int = 1
    memory_format: torch.memory_format = torch.contiguous_format
    average: WeightAverage | None = None

    def __call__(self, raw: Batch, *others: Batch) -> None:
        """Train on a batch; ``others`` are for ascents that climb along more than it."""
        if self._may_part(raw.x.device):
            drawn, (loss, logits) = ahead(
                lambda: self.draw(raw, augment=True), self._train_auxiliary, self._train_main, raw.x.device
            )
        else:
            drawn = self.draw(raw, augment=True)
            self._train_auxiliary(drawn)
            loss, logits = self._train_main(drawn, others)
        self.scaler.update()
        if self.average is not None:
            self.average.update()
        self.meters.update(loss, logits, raw.y)

    def _may_part(self, device: torch.device) -> bool:
        """Whether both networks can be trained at once: nothing the main one does asks for the other again."""
        return (
            device.type == "cuda"
            and self.auxiliary_optimizer is not None
            and self.direction == "batch"
            and not self.scaler.is_enabled()
        )

    def _train_main(self, drawn: Drawn, others: Sequence[Batch] = ()) -> tuple[Tensor, Tensor]:
        seen = self._ascend(drawn, others) if isinstance(self.optimizer, SAM) else self.gradients(drawn)
        self._descend(self.optimizer)
        return seen

    def draw(self, raw: Batch, *, augment: bool) -> Drawn:
        """The method's neighbours of a batch: once a step, however often their loss is evaluated."""
        x = self.augment(raw.x, self.rng["augment"]) if augment else to_float(raw.x)
        parts = raw.with_images(x.contiguous(memory_format=self.memory_format)).split(self.accumulate)
        with self.autocast():
            views = [self.method.views(part, model=self.model, rng=self.rng) for part in parts]
        return [(own, len(part) / len(raw)) for own, part in zip(views, parts, strict=True)]

    def gradients(self, drawn: Drawn) -> tuple[Tensor, Tensor]:
        """Leave the gradient of the whole batch in the parameters; return its loss and logits."""
        self.optimizer.zero_grad(set_to_none=True)
        return self.add_gradients(drawn)

    def full_gradient(self) -> None:
        """Leave the gradient of the whole training set, not augmented, in the parameters."""
        self.optimizer.zero_grad(set_to_none=True)
        with frozen_statistics(self.model), frozen_statistics(self.method):
            for batch in self.whole():
                share = len(batch) / self.whole_size
                self.add_gradients(self.draw(batch, augment=False), weight=share)

    def add_gradients(self, drawn: Drawn, *, weight: float = 1.0) -> tuple[Tensor, Tensor]:
        """Add a batch's gradient, so many times, to what is in the parameters; return its loss and logits."""
        losses, logits = [], []
        for views, share in drawn:
            with self.autocast():
                loss, out = self.method.loss(self.model, views)
            self._backward(loss * (share * weight))
            losses.append(loss.detach() * share)
            logits.append(out.detach())
        return torch.stack(losses).sum(), torch.cat(logits)

    def _ascend(self, drawn: Drawn, others: Sequence[Batch]) -> tuple[Tensor, Tensor]:
        """Leave the gradient at the moved weights in the parameters; running statistics see the batch once."""
        assert isinstance(self.optimizer, SAM)
        seen = DIRECTIONS[self.direction](self, drawn, others)
        self.optimizer.first_step(zero_grad=True, scaler=self.scaler)
        with nullcontext() if seen is None else frozen_statistics(self.model):
            moved = self.gradients(drawn)
        return moved if seen is None else seen

    def _train_auxiliary(self, drawn: Drawn) -> None:
        losses = [(views.auxiliary_loss, share) for views, share in drawn if views.auxiliary_loss is not None]
        if self.auxiliary_optimizer is None or not losses:
            return
        self.auxiliary_optimizer.zero_grad(set_to_none=True)
        for loss, share in losses:
            self._backward(loss * share)
        self._descend(self.auxiliary_optimizer)

    def _backward(self, loss: Tensor) -> None:
        self.scaler.scale(loss).backward()  # type: ignore[no-untyped-call]

    def _descend(self, optimizer: Optimizer) -> None:
        def clip() -> None:
            if self.clip is not None:
                torch.nn.utils.clip_grad_norm_(trained_parameters(optimizer), self.clip)

        if isinstance(optimizer, SAM):
            optimizer.second_step(scaler=self.scaler, before_descent=clip)
            return
        if self.clip is not None:
            self.scaler.unscale_(optimizer)
            clip()
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
        self._graphs: dict[int, tuple[torch.cuda.CUDAGraph, list[Batch]]] = {}

    def __call__(self, *batches: Batch) -> None:
        raw = batches[0]
        size = len(raw)
        if self._failed or self._seen[size] < WARM_UP:
            self._seen[size] += 1
            self.step(*batches)
            return
        if size not in self._graphs:
            generators = (*self.step.rng.values(), torch.cuda.default_generators[raw.x.device.index])
            before = [generator.get_state() for generator in generators]
            try:
                self._graphs[size] = self._capture(batches)
            except RuntimeError as error:
                self._give_up(error)
                for generator, state in zip(generators, before, strict=True):
                    _release(generator, state)
                self.step(*batches)
                return
        graph, inputs = self._graphs[size]
        for own, given in zip(inputs, batches, strict=True):
            for buffer, value in zip(own.tensors(), given.tensors(), strict=True):
                buffer.copy_(value)
        graph.replay()

    def _capture(self, batches: Sequence[Batch]) -> tuple[torch.cuda.CUDAGraph, list[Batch]]:
        inputs = [Batch(*(t.clone() for t in batch.tensors())) for batch in batches]
        graph = torch.cuda.CUDAGraph()
        for generator in self.step.rng.values():
            graph.register_generator_state(generator)
        # thread_local: the loader's own thread may go on pinning memory while we capture
        with torch.cuda.graph(graph, stream=torch.cuda.current_stream(), capture_error_mode="thread_local"):
            self.step(*inputs)
        return graph, inputs

    def _give_up(self, error: RuntimeError) -> None:
        reason = str(error).splitlines()[0]
        if self.note is None:
            raise HoldfastError(f"the step cannot be captured: {reason}; use --capture off") from error
        self.note(f"the step cannot be captured ({reason}); it runs eagerly")
        self._failed = True


def _release(generator: torch.Generator, state: Tensor) -> None:
    """Free a generator from a capture that failed: it would refuse to draw outside of it."""
    fresh = torch.Generator(generator.device)
    fresh.set_state(state)
    generator.graphsafe_set_state(fresh.graphsafe_get_state())
