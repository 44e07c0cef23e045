"""What goes into a training step beside method and optimiser, and what comes out: class weights in the loss, the
learning rate (a pure function of the step), an average of weights, and meters of what steps report, gathered on the
device and read now and then, with what to do when it is not finite."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from copy import deepcopy
from dataclasses import replace

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _NormBase

from holdfast.errors import HoldfastError, require
from holdfast.settings import ScheduleSettings
from holdfast.types import View, Views


def rate_factor(settings: ScheduleSettings, step: int, *, steps_per_epoch: int, epochs: int) -> float:
    """What the peak rate is multiplied by at a step, counted from 0.

    >>> cosine = ScheduleSettings(name="cosine")
    >>> [round(rate_factor(cosine, s, steps_per_epoch=1, epochs=4), 3) for s in range(4)]
    [1.0, 0.854, 0.5, 0.146]
    """
    warmup = (settings.warmup or 0.0) * steps_per_epoch  # None: nobody chose one
    if step < warmup:
        return (step + 1) / (warmup + 1)
    epoch = step // steps_per_epoch
    if settings.name == "cosine":
        done = (step - warmup) / max(1.0, epochs * steps_per_epoch - warmup)
        return 0.5 * (1 + math.cos(math.pi * min(1.0, done)))
    if settings.name == "step":
        return float(settings.gamma ** (epoch // settings.step_size))
    if settings.name == "multistep":
        return float(settings.gamma ** sum(epoch >= m for m in settings.milestones))
    return 1.0


class WeightAverage:
    """Exponential average of parameters; other buffers (BatchNorm statistics) follow the model.

    The decay rises as min(decay, (1 + t) / (10 + t)), so that a short training is not dominated by its
    initial weights. Everything stays on the device.
    """

    def __init__(self, model: nn.Module, decay: float) -> None:
        self.source = model
        self.model = deepcopy(model).requires_grad_(False).eval()
        self.decay = decay
        self.step = torch.zeros((), device=next(model.parameters()).device)
        self._averages: list[Tensor] = list(self.model.parameters())
        self._weights: list[Tensor] = list(model.parameters())
        self._buffers = list(zip(self.model.buffers(), model.buffers(), strict=True))

    @torch.no_grad()
    def update(self) -> None:
        self.step += 1
        decay = ((1 + self.step) / (10 + self.step)).clamp(max=self.decay)
        moved = torch._foreach_mul(self._weights, 1 - decay)
        torch._foreach_mul_(self._averages, decay)
        torch._foreach_add_(self._averages, moved)
        for average, buffer in self._buffers:
            average.copy_(buffer)

    def state_dict(self) -> dict[str, object]:
        return {"step": self.step, "model": self.model.state_dict()}

    def load_state_dict(self, state: dict[str, object]) -> None:
        self.step.copy_(state["step"])  # type: ignore[arg-type]
        self.model.load_state_dict(state["model"])  # type: ignore[arg-type]


def class_weights(given: Sequence[float | str], labels: Tensor, classes: Sequence[str]) -> Tensor | None:
    """(K,) a weight per class whose mean over the training samples is 1, so that learning rates mean the same.

    given: nothing, "balanced" (as much for each class, however many samples it has) or one number per class.
    labels: (N,) of the training set.

    >>> class_weights(["balanced"], torch.tensor([0, 0, 0, 1]), ["cat", "dog"])
    tensor([0.6667, 2.0000])
    """
    if not given:
        return None
    counts = torch.bincount(labels.cpu(), minlength=len(classes)).double()
    if given[0] == "balanced":
        weights = torch.where(counts > 0, 1 / counts.clamp_min(1), 0.0)
    else:
        named = ", ".join(map(str, classes[:8])) + ", ..." * (len(classes) > 8)
        wrong = f"class_weights has {len(given)} numbers, and the data has {len(classes)} classes ({named})"
        require(len(given) == len(classes), f"{wrong}; give one number per class, or balanced")
        weights = torch.tensor([float(weight) for weight in given], dtype=torch.float64)
    total = float((weights * counts).sum())
    require(total > 0, "class_weights leaves no training sample that counts; give a class of the data a number > 0")
    return (weights * (counts.sum() / total)).float()


def class_weighted(views: Views, weights: Tensor) -> Views:
    """Views whose samples also count by their class, as in torch's cross-entropy: - Σ_k w_k t_k log p_k."""
    weigh = views.weigh

    def of(view: View) -> View:
        if view.label.ndim == 2:
            return replace(view, label=view.label * weights)
        own = weights[view.label]
        return replace(view, weight=own if view.weight is None else own * view.weight)

    later = None if weigh is None else lambda logits: class_weighted(weigh(logits), weights)
    return replace(views, items=tuple(map(of, views.items)), weigh=later)


class Meters:
    """Sums of the loss and of what else a method measures, the number of steps, and the first loss not finite."""

    def __init__(self, device: torch.device, measures: Sequence[str] = ("accuracy",)) -> None:
        self.measures = measures
        self.sums = torch.zeros(1 + len(measures), dtype=torch.float64, device=device)
        self.steps = torch.zeros(2, dtype=torch.int64, device=device)  # done, first bad one
        self.seen = 0

    def reset(self) -> None:
        self.sums.zero_()
        self.seen = 0

    def update(self, loss: Tensor, sums: Sequence[Tensor], count: int) -> None:
        """Count one step; on the device alone, so it can be part of a CUDA graph.

        loss: mean over the batch. sums: over the batch, one per measure. count: images in the batch.
        """
        done, bad = self.steps[0], self.steps[1]
        done += 1
        bad.copy_(torch.where(loss.isfinite() | (bad > 0), bad, done))
        self.sums += torch.stack((loss.detach() * count, *sums))

    def read(self) -> dict[str, float]:
        """The loss and the measures, averaged since the last reset. Waits for the device."""
        averages = [value / max(1, self.seen) for value in self.sums.tolist()]
        return dict(zip(("loss", *self.measures), averages, strict=True))

    @property
    def bad_step(self) -> int:
        """The first step with a loss that is not finite, counted from 1, or 0. Waits for the device."""
        return int(self.steps[1])

    def state_dict(self) -> dict[str, object]:
        return {"sums": self.sums, "steps": self.steps, "seen": self.seen}

    def load_state_dict(self, state: dict[str, object]) -> None:
        self.sums.copy_(state["sums"])  # type: ignore[arg-type]
        self.steps.copy_(state["steps"])  # type: ignore[arg-type]
        self.seen = int(state["seen"])  # type: ignore[call-overload]


class Diverged(HoldfastError):
    """Numbers that are not finite came out of a training."""


def all_finite(networks: Iterable[nn.Module]) -> bool:
    """Whether everything that the networks have learned is finite. Waits for the device."""
    learned = {id(value): value.isfinite().all() for network in networks for value in _learned(network)}
    found = list(learned.values())
    return not found or bool(torch.stack([one.to(found[0].device) for one in found]).all())


def _learned(network: nn.Module) -> Iterator[Tensor]:
    """What steps move, and the statistics of normalisation. Other buffers may hold -inf by right, such as masks."""
    yield from (p for p in network.parameters() if p.requires_grad)
    for module in network.modules():
        if isinstance(module, _NormBase):
            yield from module.buffers()
