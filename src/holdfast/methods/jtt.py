"""JTT: just train twice (Liu et al., 2021; Algorithm 2 of BiasAdv's supplement without its blue lines)."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TYPE_CHECKING, Annotated, ClassVar, Literal

from holdfast.methods import Batch, Method, Stage, View, Views, method
from holdfast.settings import Unset, Within

if TYPE_CHECKING:
    from torch import Tensor, nn

    from holdfast.methods import Context, Generators, State


MOST_SHOWN = 10_000
"""How often a sample may be shown in an epoch: a slip of the keyboard would fill the memory with positions."""


@method(
    "jtt",
    aliases=("just-train-twice",),
    about="JTT: train twice, the second time with the first model's errors shown more often.",
    passes=1,
    order=20,
)
class Jtt(Method):
    images_alone: ClassVar[bool] = True
    first_epochs: Annotated[Unset[int], Within(1)] = None
    """Epochs of the first model (default: a tenth of --epochs). One that is trained to the end gets nothing wrong."""
    up: Annotated[int, Within(1, MOST_SHOWN, "..")] = 20
    """How often a sample that the first model gets wrong is shown in an epoch of the second."""
    count: Literal["times", "extra"] = "times"
    """Whether 'up' is how often it is shown, or how often it is added, as the authors' code has it."""
    errors: Literal["after", "during"] = "after"
    """What the trained first model gets wrong; or, as in the authors' code, what it got wrong in its last epoch."""

    def start(self, context: Context) -> State:
        import torch

        state = super().start(context)
        state.biased = context.make_model()
        state.register_buffer("shown", torch.ones(len(context.labels), dtype=torch.int64))
        return state

    def stages(self, epochs: int) -> tuple[Stage, ...]:
        about = "a model whose errors are then shown more often"
        first = self.first_epochs or math.ceil(epochs / 10)  # 0 as long as the epochs are unknown
        return (Stage("first", first, "first_epochs", about), Stage("second", epochs))

    def views(self, batch: Batch, *, model: nn.Module, state: State, rng: Generators) -> Views:
        plain = Views((View(batch.x, batch.y),))
        if self.errors == "after" or state.stage.name != "first":
            return plain

        def watch(logits: Tensor) -> Views:
            """Mark errors as 2 in passing, in training mode and at weights that move; the last epoch's are left."""
            state.shown.index_copy_(0, batch.index, 1 + (logits.argmax(1) != batch.y).to(state.shown.dtype))
            return plain

        return Views(plain.items, weigh=watch)

    def begin(self, state: State, predict: Callable[[nn.Module], Tensor]) -> str | None:
        """Decide what the second model is shown more often: what the first gets wrong."""
        import torch

        if state.stage.name == "first":
            return None
        if self.errors == "during":
            wrong = state.shown.cpu() > 1
        else:
            wrong = predict(state.biased).argmax(1).cpu() != state.context.labels
        times = self.up + (self.count == "extra")
        state.shown.copy_(torch.where(wrong, times, 1))
        count, n = int(wrong.sum()), len(wrong)
        first = self.stages(state.context.epochs)[0].epochs
        given, every = f"--method.first-epochs (now {first})", f"all {n} training samples"
        if count == 0:
            effect = "nothing is shown more often, and this is plain training"
            return f"the first model gets {every} right: {effect}; lower {given} or the learning rate"
        if count == n:
            remedy = f"raise {given} or lower the learning rate"
            return f"the first model gets {every} wrong: all are shown {times} times; {remedy}"
        return f"the first model gets {count} of {n} training samples wrong; each is now shown {times} times per epoch"

    def trainee(self, state: State, model: nn.Module) -> nn.Module:
        biased: nn.Module = state.biased
        return biased if state.stage.name == "first" else model

    def repeats(self, state: State) -> Tensor | None:
        return None if state.stage.name == "first" else state.shown
