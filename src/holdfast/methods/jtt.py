"""JTT: just train twice (Liu et al., 2021; Algorithm 2 of BiasAdv's supplement without its blue lines)."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn

from holdfast.methods.base import Context, Method, Stage
from holdfast.settings.methods import Jtt


class JttMethod(Method):
    """A first model is trained plainly; what it gets wrong afterwards, the second is shown more often."""

    settings: Jtt
    shown: Tensor
    first: bool = True
    """Whether it is the first model that is trained now."""

    def __init__(self, settings: Jtt, context: Context) -> None:
        super().__init__(settings, context)
        self.biased = context.make_model()
        self.register_buffer("shown", torch.ones(len(context.labels), dtype=torch.int64))

    def stages(self) -> tuple[Stage, ...]:
        return (Stage("first", self.settings.first_epochs), Stage("second", self.context.epochs))

    def begin(self, stage: Stage, predict: Callable[[nn.Module], Tensor]) -> str | None:
        if stage.name == "first":
            return None
        wrong = predict(self.biased).argmax(1).cpu() != self.context.labels
        times = self.settings.up + (self.settings.count == "extra")
        self.shown.copy_(torch.where(wrong, times, 1))
        count, n = int(wrong.sum()), len(wrong)
        if count == 0:
            return (
                f"the first model gets all {n} training samples right: nothing is shown more often, and this is plain "
                f"training; lower --method.first-epochs (now {self.settings.first_epochs}) or the learning rate"
            )
        if count == n:
            return (
                f"the first model gets all {n} training samples wrong: all are shown {times} times; raise "
                f"--method.first-epochs (now {self.settings.first_epochs}) or lower the learning rate"
            )
        return f"the first model gets {count} of {n} training samples wrong; each is now shown {times} times an epoch"

    def trainee(self, stage: Stage, model: nn.Module) -> nn.Module:
        self.first = stage.name == "first"
        return self.biased if self.first else model

    def repeats(self, stage: Stage) -> Tensor | None:
        return None if stage.name == "first" else self.shown
