"""What attacks share: losses to maximise, the goal, its gradient, the model in evaluation mode, the best point."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from functools import partial
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from holdfast.attacks.norms import per_image
from holdfast.errors import HoldfastError, require, require_known
from holdfast.module_state import evaluating, frozen_statistics

Classifier = Callable[[Tensor], Tensor]
"""Images (B, C, H, W) to logits (B, K)."""
LossName = Literal["ce", "margin", "dlr"]
Mode = Literal["eval", "as-is"]
AttackTarget = Tensor | Literal["least-likely"] | None


def log_odds(logits: Tensor, label: Tensor) -> Tensor:
    """(B,) log of the odds against the label: logΣ_{k≠y} e^{z_k} − z_y.

    Cross-entropy is softplus of it. So both rise together, rank points in the same order and have gradients of the same
    direction; but the gradient of cross-entropy carries a factor 1 − p_y, which is exactly 0 in float32 for a label
    that the model is sure of, and that of the log-odds does not.

    >>> log_odds(torch.tensor([[0.0, 200.0]]), torch.tensor([1]))
    tensor([-200.])
    """
    return _others(logits, label).logsumexp(1) - _own(logits, label)


def margin(logits: Tensor, label: Tensor) -> Tensor:
    """(B,) largest other logit minus that of the label: above 0 where the model errs. Any number of classes ≥ 2.

    >>> margin(torch.tensor([[1.0, 3.0, 2.0]]), torch.tensor([1]))
    tensor([-1.])
    """
    return _others(logits, label).amax(1) - _own(logits, label)


def dlr(logits: Tensor, label: Tensor) -> Tensor:
    """(B,) difference-of-logits ratio (Croce & Hein, 2020): the margin over z_π1 − z_π3, so the scale does not matter.

    It needs a third class. With two, the ratio would be ±1 everywhere, and this is the plain margin.

    >>> dlr(torch.tensor([[10.0, 30.0, 20.0]]), torch.tensor([1]))
    tensor([-0.5000])
    """
    if logits.shape[1] < 3:
        return margin(logits, label)
    top = logits.topk(3, dim=1).values
    return margin(logits, label) / (top[:, 0] - top[:, 2] + 1e-12)


LOSSES: Mapping[str, Callable[[Tensor, Tensor], Tensor]] = {"ce": log_odds, "margin": margin, "dlr": dlr}


def _own(logits: Tensor, label: Tensor) -> Tensor:
    return logits.gather(1, label[:, None]).squeeze(1)


def _others(logits: Tensor, label: Tensor) -> Tensor:
    return logits.scatter(1, label[:, None], -torch.inf)


FIRST_WEIGHT = 2.0**8
"""Initial loss scale for a float16 model; later it follows the size of the gradients."""


def borrowed(model: Classifier, mode: Mode) -> AbstractContextManager[None]:
    """The model in the given mode; its flags and statistics are restored afterwards."""
    require_known("mode", mode, ("eval", "as-is"))
    if not isinstance(model, nn.Module):
        return nullcontext()
    return evaluating(model) if mode == "eval" else frozen_statistics(model)


def prepared(model: Classifier, x: Tensor, mode: Mode, *, batch_size: int | None, early_stop: bool) -> Classifier:
    """The model on batches of at most ``batch_size``, and of few different sizes where batches shrink.

    GPU libraries tune every new batch size, which takes longer than many an attack. Only modules in evaluation mode
    get batches filled up: there, images of a batch do not influence each other.
    """
    require(batch_size is None or batch_size >= 1, f"batch_size must be >= 1, got {batch_size}")
    largest = len(x) if batch_size is None else min(batch_size, len(x))
    if early_stop and mode == "eval" and isinstance(model, nn.Module) and x.is_cuda:
        model = partial(filled, model, largest)
    return partial(in_parts, model, largest) if largest < len(x) else model


def filled(model: Classifier, largest: int, x: Tensor) -> Tensor:
    """Logits of a batch filled up with black images to a power of two, or to the largest batch."""
    missing = min(largest, 1 << (len(x) - 1).bit_length()) - len(x)
    return model(F.pad(x, (0, 0) * (x.ndim - 1) + (0, missing)))[: len(x)] if missing > 0 else model(x)


def in_parts(model: Classifier, size: int, x: Tensor) -> Tensor:
    """Logits of images, ``size`` at a time."""
    return model(x) if len(x) <= size else torch.cat([model(part) for part in torch.split(x, size)])


@dataclass(frozen=True, eq=False)
class Goal:
    """What counts as success, and the loss to maximise.

    label: (B,) the class to leave (sign 1) or to reach (sign −1). beyond: by how much of a logit.
    """

    label: Tensor
    loss: LossName = "ce"
    sign: int = 1
    beyond: float = 0.0

    def value(self, logits: Tensor) -> Tensor:
        return self.sign * LOSSES[self.loss](logits, self.label)

    def reached(self, logits: Tensor) -> Tensor:
        """(B,) whether the prediction is not the class to leave, or is the class to reach."""
        if self.beyond:
            return self.sign * margin(logits, self.label) > self.beyond
        there = logits.argmax(1) == self.label
        return ~there if self.sign > 0 else there

    def take(self, index: Tensor | slice) -> Goal:
        return replace(self, label=self.label[index])


def make_goal(model: Classifier, x: Tensor, y: Tensor, *, target: AttackTarget, loss: LossName) -> Goal:
    """The goal of an attack. The least likely class is taken at the clean image and is never the label."""
    check_examples(x, y)
    require_known("loss", loss, LOSSES)
    if target is None:
        return Goal(y, loss)
    if isinstance(target, Tensor):
        require(target.shape == y.shape, f"target must be as y, {tuple(y.shape)}, got {tuple(target.shape)}")
        return Goal(target, loss, -1)
    require_known("target", target, ("least-likely",))
    logits = scores(model, x)
    check_answers(logits, y)
    return Goal(logits.scatter(1, y[:, None], torch.inf).argmin(1), loss, -1)


def check_examples(x: Tensor, y: Tensor) -> None:
    """Refuse images and labels that no attack can work on."""
    whole = y.ndim == 1 and y.dtype == torch.int64
    require(whole, f"y must be classes (B,) of type int64, got {y.dtype} {tuple(y.shape)}; convert them with y.long()")
    require(len(x) == len(y), f"there must be one label per image, got {len(y)} for {len(x)}")
    if _may_look(x) and not bool(torch.isfinite(x).all()):
        at = int((~torch.isfinite(x)).flatten(1).any(1).nonzero()[0])
        raise HoldfastError(f"image {at} has NaN or infinite pixels; repair or remove it")


def check_answers(logits: Tensor, label: Tensor, *, nan: bool = False) -> None:
    """Refuse labels that are not classes of the model, and a model that gives NaN unless it may."""
    if len(label) == 0 or not _may_look(logits):
        return
    check_labels(label, logits.shape[1])
    if not nan and bool(logits.isnan().any()):
        at = int(logits.isnan().any(1).nonzero()[0])
        raise HoldfastError(f"the model gives NaN for image {at}; check its weights and its preprocessing")


def check_labels(label: Tensor, classes: int) -> None:
    """Refuse labels that are not classes of the model."""
    outside = (label < 0) | (label >= classes)
    if bool(outside.any()):
        at = int(outside.nonzero()[0])
        raise HoldfastError(
            f"label {int(label[at])} of image {at} is not a class of the model, which are 0 to {classes - 1}"
        )


def _may_look(values: Tensor) -> bool:
    """Whether values can be looked at: a CUDA graph cannot hand any to the host while it is recorded."""
    return not (values.is_cuda and torch.cuda.is_current_stream_capturing())


@torch.no_grad()
def scores(model: Classifier, x: Tensor) -> Tensor:
    """Logits, float32 at least."""
    return _wide(model(x))


class GoalGradient:
    """Gradients of a goal with respect to images, of the sum over samples, so that each row is that sample's gradient.

    Only the images are differentiated: parameters get no gradient. For outputs in float16 the loss of each sample
    is multiplied by a weight that follows the size of its gradient, so that it neither underflows nor overflows.
    nan: whether the model may give NaN, as one in training may: its loss will tell.
    """

    def __init__(self, model: Classifier, batch_size: int | None = None, *, nan: bool = False) -> None:
        self.model, self.batch_size, self.nan = model, batch_size, nan
        self.weight: Tensor | None = None
        self._checked = False

    def __call__(self, x: Tensor, goal: Goal) -> tuple[Tensor, Tensor, Tensor]:
        """(value, reached, gradient): (B,), (B,), like x."""
        size = self.batch_size or max(len(x), 1)
        if len(x) <= size:
            value, reached, gradient, self.weight = self._part(x, goal, self.weight)
            self._checked = True
            return value, reached, gradient
        cuts = [slice(first, first + size) for first in range(0, len(x), size)]
        parts = [self._part(x[c], goal.take(c), None if self.weight is None else self.weight[c]) for c in cuts]
        values, hits, gradients, weights = zip(*parts, strict=True)
        self._checked = True
        self.weight = None if weights[0] is None else torch.cat(weights)
        return torch.cat(values), torch.cat(hits), torch.cat(gradients)

    def _part(self, x: Tensor, goal: Goal, weight: Tensor | None) -> tuple[Tensor, Tensor, Tensor, Tensor | None]:
        with torch.enable_grad():
            x = x.detach().requires_grad_()
            raw = self.model(x)
            logits = _wide(raw)
            if not self._checked:  # once is enough: to look at a value is to wait for the device
                check_answers(logits, goal.label, nan=self.nan)
            value = goal.value(logits)
            if raw.dtype == torch.float16 and weight is None:
                weight = torch.full_like(value.detach(), FIRST_WEIGHT)
            total = value.sum() if weight is None else (value * weight).sum()
            gradient = torch.autograd.grad(total, x, allow_unused=True)[0] if total.requires_grad else None
        if gradient is None:  # the model detaches its graph; the audit's trust checks report it
            gradient = torch.zeros_like(x)
        if weight is not None:
            gradient, weight = _in_range(gradient, weight)
        return value.detach(), goal.reached(logits.detach()), gradient, weight

    def take(self, index: Tensor) -> None:
        self.weight = None if self.weight is None else self.weight[index]


def _in_range(gradient: Tensor, weight: Tensor) -> tuple[Tensor, Tensor]:
    """The gradient with overflows set to 0, and the weights for the next one."""
    largest = gradient.detach().abs().amax((1, 2, 3)).to(weight.dtype)
    lost, faint = ~largest.isfinite(), largest < 2.0**-8
    factor = torch.where(lost, 2.0**-8, torch.where(faint, 2.0**8, 1.0))
    return gradient.float().nan_to_num(0.0, 0.0, 0.0), (weight * factor).clamp(2.0**-14, 2.0**15)


@dataclass(eq=False)
class Best:
    """The best point of each sample so far: those that reach the goal first, then by value."""

    point: Tensor
    value: Tensor
    reached: Tensor

    @classmethod
    def empty(cls, x: Tensor) -> Best:
        lowest = torch.full((len(x),), -torch.inf, device=x.device)
        return cls(x.detach().clone(), lowest, torch.zeros(len(x), dtype=torch.bool, device=x.device))

    def update(self, point: Tensor, value: Tensor, reached: Tensor, index: Tensor | None = None) -> None:
        """Compare with new points of all samples, or of those at an index."""
        if index is not None:
            part = Best(*(own[index] for own in vars(self).values()))
            part.update(point, value, reached)
            for name, new in vars(part).items():
                setattr(self, name, getattr(self, name).index_copy(0, index, new))
            return
        value = value.to(self.value.dtype)
        better = (reached & ~self.reached) | ((reached == self.reached) & (value > self.value))
        self.point = torch.where(per_image(better), point, self.point)
        self.value = torch.where(better, value, self.value)
        self.reached = self.reached | reached


def best_of_clean(model: Classifier, x: Tensor, goal: Goal) -> Best:
    """The clean images, for attacks that start elsewhere: they then never find fewer errors than the clean ones."""
    best, logits = Best.empty(x), scores(model, x)
    check_answers(logits, goal.label)
    best.update(x, goal.value(logits), goal.reached(logits))
    return best


def _wide(logits: Tensor) -> Tensor:
    require(logits.ndim == 2 and logits.shape[1] >= 2, f"logits must be (B, K >= 2), got {tuple(logits.shape)}")
    return logits.to(torch.promote_types(logits.dtype, torch.float32))
