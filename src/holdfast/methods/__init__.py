"""What a training method is: which neighbours of a batch to train on. Open this file to write one.

One file per method, with its settings as the fields of a class and ``@method`` on top, which makes it a frozen
dataclass. Files import without torch, since ``holdfast train --help`` reads them all; their functions import what they
use.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from holdfast.errors import HoldfastError
from holdfast.parts import method
from holdfast.settings import MethodSettings, TrainSettings
from holdfast.types import Batch, View, Views

if TYPE_CHECKING:
    from torch import Tensor, nn

    from holdfast.methods._state import State as State
    from holdfast.rng import Generators as Generators

__all__ = ["Batch", "Context", "Method", "Stage", "State", "View", "Views", "method", "method_of"]


@dataclass(frozen=True)
class Context:
    """What a method may know of the training it serves.

    labels, groups: (N,) of the training set, on the CPU. make_model: a fresh, freshly initialised network.
    unlabeled: (M, C, H, W) uint8, images without labels, where there are some. searching: whether a shortcut is being
    searched for, so that nobody needs to be told to.
    """

    num_classes: int
    labels: Tensor
    groups: Tensor
    epochs: int
    make_model: Callable[[], nn.Module]
    unlabeled: Tensor | None = None
    searching: bool = False

    def cells(self, *, by: Literal["class", "group"], method: str) -> Tensor:
        """(N,) the class of each training sample, or its class and group as one number. method: who needs them."""
        if by == "class":
            return self.labels
        unknown = int((self.groups < 0).sum())
        if unknown:
            remedy = "give the data a group column" if unknown == len(self.groups) else "fill in theirs"
            lost = f"{method} needs the group of every training sample, and {unknown} of {len(self.groups)} have none"
            raise HoldfastError(f"{lost}; {remedy}, or use a method that needs no groups (lff, jtt)")
        return self.labels * (int(self.groups.max()) + 1) + self.groups


@dataclass(frozen=True)
class Stage:
    """A stretch of a training with an optimiser and a schedule of its own.

    setting: the method's own, if it is one that says how many epochs. about: what is trained, where that is not the
    model itself.
    """

    name: str
    epochs: int
    setting: str = ""
    about: str = ""


@dataclass(frozen=True)
class Method(MethodSettings):
    """The settings of a method and its algorithm. No function must be overridden: the defaults are plain training.

    What a training remembers is not in here but in a ``State``, a module that ``start`` makes and every function is
    given: ``state.context`` is what is known of the training, ``state.stage`` the stage under way. What the method
    registers there as parameters (an auxiliary model) is trained by the ``auxiliary_loss`` of its views, with an
    optimiser like the main one; buffers are saved and restored with the run. Where ranks share a batch, a method sees
    all of it, but each call of a network computes a part of its rows on every rank: networks must treat rows alone.
    """

    capturable: ClassVar[bool] = True
    """Whether a step can be a CUDA graph: no host synchronisation, no control flow on tensor values."""
    images_alone: ClassVar[bool] = False
    """Whether the views of an image come from that image alone, and are rows of the same number in every call of a
    network. Ranks that share a batch then need neither the pixels of each other's images nor gradients of them."""
    declared_passes: ClassVar[float] = 1.0
    measures: ClassVar[tuple[str, ...]] = ("accuracy",)
    """What an epoch's record says of the training images beside their loss, with ``train_`` before it."""

    @property
    def mixes_others(self) -> bool:
        """Whether a step needs as many other images of the training set (``batch.others``), drawn as the batch was."""
        return False

    def start(self, context: Context) -> State:
        """What a new training remembers. Buffers must keep their storage from then on: change them in place."""
        from holdfast.methods._state import State

        return State(context)

    def stages(self, epochs: int) -> tuple[Stage, ...]:
        """What a training of so many epochs consists of."""
        return (Stage("main", epochs),)

    def passes(self, state: State) -> tuple[float, float]:
        """Forward and backward passes per image that the present stage shows, where plain training has 1.

        (Those of the loss, which an ascent repeats; all beside them.) A forward pass alone is a third.
        """
        return 1.0, self.declared_passes - 1

    def begin(self, state: State, predict: Callable[[nn.Module], Tensor]) -> str | None:
        """Called once when a stage starts. ``predict`` gives a model's logits (N, K) on the clean training set.

        The text it returns is shown to the user.
        """
        return None

    def attached(self, state: State, model: nn.Module) -> AbstractContextManager[object]:
        """Entered around a stage: the place for hooks on the network that is trained."""
        return nullcontext()

    def trainee(self, state: State, model: nn.Module) -> nn.Module:
        """The network that the main optimiser trains in this stage."""
        return model

    def trained_along(self, state: State) -> nn.Module | None:
        """The part of the state that the main loss and the main optimiser train, such as layers that stand in for some
        of the model's; every other part is trained by the ``auxiliary_loss``."""
        return None

    def repeats(self, state: State) -> Tensor | None:
        """(N,) how often an epoch of this stage shows each training sample; None is once."""
        return None

    def views(self, batch: Batch, *, model: nn.Module, state: State, rng: Generators) -> Views:
        """Draw the neighbours to train on: once per step, also when the loss is evaluated at several weights."""
        return Views((View(batch.x, batch.y),))

    def forward(self, model: nn.Module, views: Views, *, state: State) -> tuple[Tensor, ...]:
        """Logits of each view."""
        from holdfast.module_state import call_with, frozen_statistics

        logits = []
        for view in views.items:
            with nullcontext() if view.update_statistics else frozen_statistics(model):
                logits.append(call_with(view.norms, model, view.x))
        return tuple(logits)

    def loss(self, logits: tuple[Tensor, ...], views: Views) -> Tensor:
        """Σ mean(weight · cross-entropy) over the views."""
        from holdfast.losses import cross_entropy

        terms = [
            (cross_entropy(out, view.label) * (1 if view.weight is None else view.weight)).mean()
            for out, view in zip(logits, views.items, strict=True)
        ]
        return sum(terms[1:], terms[0])

    def measured(self, outputs: Tensor, y: Tensor) -> tuple[Tensor, ...]:
        """The sum of each of ``measures`` over a batch. outputs: the first that ``forward`` gave. y: (B,) classes."""
        return ((outputs.argmax(1) == y).sum(),)


def method_of(settings: TrainSettings) -> Method:
    """The method that settings name, with its algorithm."""
    assert isinstance(settings.method, Method), f"{type(settings.method)} must be a subclass of Method"
    return settings.method


def __getattr__(name: str) -> Any:
    if name == "State":  # imports torch
        from holdfast.methods._state import State

        return State
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
