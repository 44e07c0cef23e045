"""What a method is to the engine. One file a method; the loop never asks which one it runs."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor, nn

from holdfast.losses import cross_entropy
from holdfast.module_state import frozen_statistics
from holdfast.rng import Generators
from holdfast.settings import MethodSettings
from holdfast.types import Batch, View, Views


@dataclass(frozen=True)
class Context:
    """What a method may know of the training it serves.

    labels, groups: (N,) of the training set, on the CPU. make_model: a fresh, freshly initialised network.
    unlabeled: (M, C, H, W) uint8, images without labels, where there are some.
    """

    num_classes: int
    labels: Tensor
    groups: Tensor
    epochs: int
    make_model: Callable[[], nn.Module]
    unlabeled: Tensor | None = None


@dataclass(frozen=True)
class Stage:
    """A stretch of a training with an optimiser and a schedule of its own."""

    name: str
    epochs: int


class Method(nn.Module):
    """Says which neighbours of a batch to train on.

    A method is a module: what it registers as parameters (an auxiliary model) is trained by the
    ``auxiliary_loss`` it draws, with an optimiser like the main one; what it registers as buffers is saved and
    restored with the run. Every hook but none must be overridden: the defaults are those of plain training.
    """

    capturable: ClassVar[bool] = True
    """Whether a step can be a CUDA graph: no host synchronisation, no control flow on tensor values."""

    def __init__(self, settings: MethodSettings, context: Context) -> None:
        super().__init__()
        self.settings = settings
        self.context = context

    def stages(self) -> tuple[Stage, ...]:
        return (Stage("main", self.context.epochs),)

    def begin(self, stage: Stage, predict: Callable[[nn.Module], Tensor]) -> str | None:
        """Called once when a stage starts. ``predict`` gives a model's logits (N, K) on the clean training set.

        What it returns, the user is told.
        """
        return None

    def attached(self, model: nn.Module) -> AbstractContextManager[object]:
        """Entered around a stage: the place for hooks on the network that is trained."""
        return nullcontext()

    def trainee(self, stage: Stage, model: nn.Module) -> nn.Module:
        """The network that the main optimiser trains in this stage."""
        return model

    def repeats(self, stage: Stage) -> Tensor | None:
        """(N,) how often an epoch of this stage shows each training sample; None is once."""
        return None

    def views(self, batch: Batch, *, model: nn.Module, rng: Generators) -> Views:
        """Draw the neighbours to train on: once a step, also when the loss is evaluated at several weights."""
        return Views((View(batch.x, batch.y),))

    def loss(self, model: nn.Module, views: Views) -> tuple[Tensor, Tensor]:
        """(Σ mean(weight · cross-entropy), logits of the first view)."""
        logits = [show(model, view) for view in views.items]
        terms = [
            (cross_entropy(out, view.label) * (1 if view.weight is None else view.weight)).mean()
            for out, view in zip(logits, views.items, strict=True)
        ]
        return sum(terms[1:], terms[0]), logits[0]


def show(model: nn.Module, view: View) -> Tensor:
    """Logits of a view."""
    with frozen_statistics(model) if view.traceless else nullcontext():
        logits: Tensor = model(view.x)
    return logits
