"""What belongs to one stage of a training: its network, optimisers, schedule, order and step."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from holdfast.ascents import ascent_of
from holdfast.augment.basic import Augment
from holdfast.data.loaders import Loader
from holdfast.devices import autocast
from holdfast.methods import Stage, State, method_of
from holdfast.optim import build_optimizer, set_option
from holdfast.parts import ASCENTS
from holdfast.rng import Generators, derive
from holdfast.settings import TrainSettings
from holdfast.train.meters import Meters
from holdfast.train.schedule import WeightAverage, rate_factor
from holdfast.train.step import Step, captured


class StageRun:
    """A stage under way. Made when a stage begins or resumes; ``state_dict`` carries it over a restart."""

    def __init__(
        self,
        stage: Stage,
        settings: TrainSettings,
        state: State,
        model: nn.Module,
        *,
        count: int,
        loader: Loader,
        augment: Augment,
        rng: Generators,
        meters: Meters,
        device: torch.device,
        note: Callable[[str], None],
        order: Callable[[int], Tensor] | None = None,
        fused: bool = True,
    ) -> None:
        loop = settings.loop
        method, self.ascent = method_of(settings), ascent_of(settings)
        self.stage, self.settings = stage, settings
        state.stage = stage
        self.trainee = method.trainee(state, model)
        self.average = WeightAverage(self.trainee, loop.ema) if loop.ema else None
        self.scaler = torch.amp.GradScaler(device.type, enabled=loop.precision == "fp16")
        self.optimizer = build_optimizer(
            settings.optimizer,
            self.trainee.parameters(),
            self.ascent.optimizer,
            skip_nonfinite=loop.precision == "fp16",  # elsewhere a step that is not finite ends the training
            fused=fused,
        )
        trained = {id(p) for p in self.trainee.parameters()}
        own = [p for p in state.parameters() if p.requires_grad and id(p) not in trained]
        self.auxiliary_optimizer = build_optimizer(settings.optimizer, own, fused=fused) if own else None
        repeats = method.repeats(state)
        times = torch.ones(count, dtype=torch.int64) if repeats is None else repeats.cpu()
        self.positions = torch.arange(count).repeat_interleave(times)
        self.own_order = order
        self.steps_per_epoch = batches(len(self.positions if order is None else order(0)), loop.batch_size)
        whole = min(count, batches(count, loop.batch_size) * loop.batch_size)
        network = _compiled(self.trainee) if loop.compile else self.trainee
        for auxiliary in state.children() if loop.compile else ():
            auxiliary.compile(dynamic=False)
        self.plain_step = Step(
            model=network,
            method=method,
            state=state,
            optimizer=self.optimizer,
            auxiliary_optimizer=self.auxiliary_optimizer,
            augment=augment,
            rng=rng,
            meters=meters,
            autocast=partial(autocast, loop.precision, device),
            scaler=self.scaler,
            whole=lambda: loader.batches(torch.arange(whole)),
            whole_size=whole,
            ascent=self.ascent,
            clip=settings.optimizer.clip,
            accumulate=loop.accumulate,
            memory_format=torch.channels_last if loop.channels_last else torch.contiguous_format,
            average=self.average,
        )
        captures = loop.capture != "off" and device.type == "cuda" and method.capturable
        self.step: Callable[..., None] = self.plain_step
        if captures and not self.ascent.reads_whole_set:
            self.step = captured(self.plain_step, device, note=note if loop.capture == "auto" else None)
        if self.ascent.reads_whole_set:
            cost = self.steps_per_epoch + ASCENTS[self.ascent.name].passes
            note(
                f"{self.ascent.name} takes the gradient of all {count} training images at each of "
                f"{self.steps_per_epoch} steps per epoch: an epoch costs about {cost:g} plain ones"
            )

    @property
    def evaluated(self) -> nn.Module:
        """The network whose predictions count."""
        return self.trainee if self.average is None else self.average.model

    def order(self, stage: int, epoch: int, *, purpose: str = "order") -> Tensor:
        """What an epoch shows, shuffled by seed, stage and epoch alone unless the training has an order of its own."""
        if self.own_order is not None:
            return self.own_order(epoch)
        seed = derive(self.settings.loop.seed, f"{purpose}/{stage}/{epoch}")
        shuffled = torch.randperm(len(self.positions), generator=torch.Generator().manual_seed(seed))
        return self.positions[shuffled][: self.steps_per_epoch * self.settings.loop.batch_size]

    def rate(self, step: int) -> float:
        """The learning rate at a step of this stage."""
        factor = rate_factor(
            self.settings.schedule, step, steps_per_epoch=self.steps_per_epoch, epochs=self.stage.epochs
        )
        return self.settings.optimizer.peak_lr * factor

    def follow_schedule(self, step: int) -> None:
        """Set learning rates and the ascent's radius for a step of this stage."""
        rate = self.rate(step)
        for optimizer in (self.optimizer, self.auxiliary_optimizer):
            if optimizer is not None:
                set_option(optimizer, "lr", rate)
        radius = self.ascent.radius(step / (self.stage.epochs * self.steps_per_epoch))
        if radius is not None:
            set_option(self.optimizer, "rho", radius)

    def state_dict(self) -> dict[str, Any]:
        return {name: part.state_dict() for name, part in self._parts().items()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        for name, part in self._parts().items():
            if isinstance(part, Optimizer):
                _load_optimizer(part, state[name])
            else:
                part.load_state_dict(state[name])

    def _parts(self) -> dict[str, Any]:
        parts = {
            "optimizer": self.optimizer,
            "auxiliary_optimizer": self.auxiliary_optimizer,
            "scaler": self.scaler,
            "average": self.average,
        }
        return {name: part for name, part in parts.items() if part is not None}


def batches(count: int, batch_size: int) -> int:
    """Batches per epoch. A last batch of one sample is left out: BatchNorm has no variance for it.

    >>> batches(10, 5), batches(11, 5), batches(12, 5), batches(1, 5)
    (2, 2, 3, 1)
    """
    full, rest = divmod(count, batch_size)
    return full + (rest > 1 or full == 0)


def _load_optimizer(optimizer: Optimizer, state: dict[str, Any]) -> None:
    """Restore, but keep the very tensors that hold scheduled options: they live on the device, the loaded do not."""
    scheduled = [{k: v for k, v in group.items() if isinstance(v, Tensor)} for group in optimizer.param_groups]
    optimizer.load_state_dict(state)
    for group, kept in zip(optimizer.param_groups, scheduled, strict=True):
        group |= kept


def _compiled(model: nn.Module) -> nn.Module:
    """The model compiled for each batch size by itself.

    Torch remembers from one training to the next that batch sizes vary, and then compiles slower code for any size;
    and it gives up compiling after a few models. Hence the reset.
    """
    torch.compiler.reset()
    compiled: nn.Module = torch.compile(model, dynamic=False)  # type: ignore[assignment]
    return compiled
