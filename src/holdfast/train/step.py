"""One training step: views, gradients, ascent, descent. Run eagerly, or captured as one CUDA graph; and diagnosed."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field, replace
from typing import TypeVar

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from holdfast.ascents import Ascent, Drawn, Evaluated, NoAscent
from holdfast.augment.basic import Augment, to_float
from holdfast.devices import CaptureAfterWarmUp, ahead
from holdfast.methods import Method, State
from holdfast.module_state import frozen_statistics
from holdfast.optim import SAM, trained_parameters
from holdfast.optim.foreach import inner as inner_product
from holdfast.rng import Generators
from holdfast.train.shared_batch import SharedBatch
from holdfast.train.step_parts import Meters, WeightAverage, class_weighted
from holdfast.types import Batch

A = TypeVar("A")
FIELDS = 4
"""Tensors that a loader gives of a batch."""


@dataclass(frozen=True)
class Step:
    """Everything a step needs, and the step itself. Nothing in it waits for the device."""

    model: nn.Module
    method: Method
    state: State
    optimizer: Optimizer
    auxiliary_optimizer: Optimizer | None
    augment: Augment
    rng: Generators
    meters: Meters
    autocast: Callable[[], AbstractContextManager[object]]
    scaler: torch.amp.GradScaler
    whole: Callable[[], Iterable[Batch]]
    whole_size: int
    ascent: Ascent = field(default_factory=NoAscent)
    clip: float | None = None
    accumulate: int = 1
    memory_format: torch.memory_format = torch.contiguous_format
    average: WeightAverage | None = None
    class_weights: Tensor | None = None
    shared: SharedBatch | None = None

    def __call__(self, raw: Batch, *others: Batch) -> None:
        """Train on a batch; ``others`` are for a method that mixes it with one, and ascents that climb along more."""
        partners, others = (others[0], others[1:]) if self.method.mixes_others else (None, others)
        if self._may_part(raw.x.device):
            _, found = ahead(
                lambda: self.draw(raw, partners, augment=True), self._train_auxiliary, self._train_main, raw.x.device
            )
        else:
            drawn = self.draw(raw, partners, augment=True)
            self._train_auxiliary(drawn)
            found = self._train_main(drawn, others)
        self.scaler.update()
        if self.shared is not None:
            self.shared.average_statistics(len(raw))
        if self.average is not None:
            self.average.update()
        self.meters.update(found.loss, self.method.measured(found.logits, raw.y), len(raw))

    def _may_part(self, device: torch.device) -> bool:
        """Whether both networks can be trained at once: nothing the main one does asks for the other again."""
        if device.type != "cuda" or self.auxiliary_optimizer is None or self.shared is not None:
            return False
        return not (self.ascent.reads_whole_set or self.ascent.other_batches or self.scaler.is_enabled())

    def _train_main(self, drawn: Drawn, others: Sequence[Batch] = ()) -> Evaluated:
        found = self._ascend(drawn, others) if isinstance(self.optimizer, SAM) else self.gradients(drawn)
        self._descend(self.optimizer)
        return found

    def draw(self, raw: Batch, partners: Batch | None = None, *, augment: bool) -> Drawn:
        """The method's neighbours of a batch: once per step, however often their loss is evaluated."""
        parts = replace(raw, x=self._prepared(raw, augment)).split(self.accumulate)
        if partners is not None:
            others = self._prepared(partners, augment).chunk(self.accumulate)
            parts = [replace(part, others=own) for part, own in zip(parts, others, strict=True)]
        with self.autocast():
            views = [self.method.views(part, model=self.model, state=self.state, rng=self.rng) for part in parts]
        if self.class_weights is not None:
            views = [class_weighted(own, self.class_weights) for own in views]
        return [(own, len(part) / len(raw)) for own, part in zip(views, parts, strict=True)]

    def _prepared(self, raw: Batch, augment: bool) -> Tensor:
        x = self.augment(raw.x, self.rng["augment"]) if augment else to_float(raw.x)
        return x.contiguous(memory_format=self.memory_format)

    def gradients(self, drawn: Drawn) -> Evaluated:
        """Leave the gradient of the whole batch in the parameters."""
        self.optimizer.zero_grad(set_to_none=True)
        return self.add_gradients(drawn)

    def full_gradient(self) -> None:
        """Leave the gradient of the whole training set, not augmented, in the parameters."""
        self.optimizer.zero_grad(set_to_none=True)
        with self.without_trace():
            for batch in self.whole():
                share = len(batch) / self.whole_size
                self.add_gradients(self.draw(batch, augment=False), weight=share)

    def add_gradients(self, drawn: Drawn, *, weight: float = 1.0) -> Evaluated:
        """Add a batch's gradient, so many times, to what is in the parameters.

        Views that have yet to be weighed are so here, from the forward pass that the gradient needs anyway.
        """
        losses, logits, weighed = [], [], []
        before = self._set_aside()
        for last, (views, share) in _marking_last(drawn):
            with self.autocast():
                outputs = self.method.forward(self.model, views, state=self.state)
                if views.weigh is not None:
                    views = views.weigh(outputs[0].detach())
                loss = self.method.loss(outputs, views)
            with self._summed(self.optimizer, last):
                self._backward(loss * (share * weight))
            losses.append(loss.detach() * share)
            logits.append(outputs[0].detach())
            weighed.append((views, share))
        for p, grad in before:
            p.grad = grad if p.grad is None else p.grad + grad
        return Evaluated(torch.stack(losses).sum(), torch.cat(logits), weighed)

    def _set_aside(self) -> list[tuple[Tensor, Tensor]]:
        """Gradients that are there already. They are sums over ranks, and what is added has yet to be summed."""
        held = [(p, p.grad) for p in self.trained() if p.grad is not None] if self.shared is not None else []
        for p, _ in held:
            p.grad = None
        return held

    def _summed(self, optimizer: Optimizer, last: bool) -> AbstractContextManager[object]:
        """Around a backward pass: the gradient of the whole batch is that of all ranks, once its last part is there."""
        if self.shared is None or not last:
            return nullcontext()
        return self.shared.summing(trained_parameters(optimizer))

    def trained(self) -> list[Tensor]:
        """Every parameter that the main optimiser moves."""
        return trained_parameters(self.optimizer)

    @contextmanager
    def without_trace(self) -> Iterator[None]:
        """Passes inside leave running statistics and what the method remembers as they are."""
        with frozen_statistics(self.model), frozen_statistics(self.state):
            yield

    def _ascend(self, drawn: Drawn, others: Sequence[Batch]) -> Evaluated:
        """Leave the gradient at the moved weights in the parameters; running statistics see the batch once."""
        assert isinstance(self.optimizer, SAM)
        apart = nullcontext() if self.shared is None else self.shared.climbing_apart(self.ascent.per_rank)
        with apart:
            before = self.ascent.direction(self, drawn, others)
        drawn = self._weighed(drawn) if before is None else before.drawn
        self.optimizer.first_step(zero_grad=True, scaler=self.scaler)
        with nullcontext() if before is None else self.without_trace():
            moved = self.gradients(drawn)
        return moved if before is None else before

    @torch.no_grad()
    def _weighed(self, drawn: Drawn) -> Drawn:
        """Views weighed at the unmoved weights, by a forward pass of their own: for an ascent that makes none there."""
        weighed = []
        for views, share in drawn:
            if views.weigh is not None:
                with self.autocast():
                    with self.without_trace():
                        logits = self.method.forward(self.model, views, state=self.state)[0]
                    views = views.weigh(logits)
            weighed.append((views, share))
        return weighed

    def _train_auxiliary(self, drawn: Drawn) -> None:
        losses = [(views.auxiliary_loss, share) for views, share in drawn if views.auxiliary_loss is not None]
        if self.auxiliary_optimizer is None or not losses:
            return
        self.auxiliary_optimizer.zero_grad(set_to_none=True)
        for last, (loss, share) in _marking_last(losses):
            with self._summed(self.auxiliary_optimizer, last):
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


def _marking_last(items: Sequence[A]) -> Iterator[tuple[bool, A]]:
    """Each item, and whether it is the last."""
    return ((n == len(items), item) for n, item in enumerate(items, start=1))


def captured(step: Step, device: torch.device, note: Callable[[str], None] | None) -> Callable[..., None]:
    """The step as CUDA graphs, one per batch size; the first batches of a size are trained on eagerly.

    note: called with the reason where a step cannot be captured, which then runs eagerly; without it, that is an error.
    """

    def on_tensors(*tensors: Tensor) -> None:
        step(*(Batch(*own) for own in zip(*[iter(tensors)] * FIELDS, strict=True)))

    replayed = CaptureAfterWarmUp(on_tensors, device=device, generators=step.rng.values(), note=note)
    return lambda *batches: replayed(*(tensor for batch in batches for tensor in batch.tensors()))


def compiled(model: nn.Module) -> nn.Module:
    """The model compiled for each batch size by itself.

    Torch remembers from one training to the next that batch sizes vary, and then compiles slower code for any size;
    and it gives up compiling after a few models. Hence the reset.
    """
    torch.compiler.reset()
    made: nn.Module = torch.compile(model, dynamic=False)  # type: ignore[assignment]
    return made


def diagnose(step: Step, batch: Batch) -> dict[str, float]:
    """What a batch gradient holds of the full one (F-SAM, section A1): norms and angles at the present weights, for a
    batch that is not augmented. Off the hot path.

    ``gradient_norm``, ``full_gradient_norm``: ‖g‖ and ‖G‖. ``full_gradient_share``: cos²(g, G), the part of the batch
    gradient's energy along the full gradient. ``ascent_norm``: ‖ε‖. ``ema_cosine``: cos(m, G) of a friendly ascent.
    """
    generators = step.rng.state_dict()
    devices = [batch.x.device] if batch.x.is_cuda else []
    with torch.random.fork_rng(devices):  # dropout draws from torch's own generators
        with step.without_trace():
            step.gradients(step.draw(batch, augment=False))
        params = [p for p in step.trained() if p.grad is not None]
        scale = float(step.scaler.get_scale())
        own = [p.grad / scale for p in params if p.grad is not None]
        step.full_gradient()
    full = [torch.zeros_like(p) if p.grad is None else p.grad / scale for p in params]
    step.optimizer.zero_grad(set_to_none=True)
    step.rng.load_state_dict(generators)
    found = {"gradient_norm": _norm(own), "full_gradient_norm": _norm(full)}
    found["full_gradient_share"] = _cosine(own, full) ** 2
    if isinstance(step.optimizer, SAM):
        found["ascent_norm"] = step.optimizer.ascent_norm(params, own)
        means = [step.optimizer.average[p] for p in params if p in step.optimizer.average]
        if len(means) == len(params):
            found["ema_cosine"] = _cosine(means, full)
    return found


def _norm(tensors: list[Tensor]) -> float:
    return math.sqrt(float(inner_product(tensors, tensors)))


def _cosine(a: list[Tensor], b: list[Tensor]) -> float:
    return float(inner_product(a, b)) / max(_norm(a) * _norm(b), 1e-30)
