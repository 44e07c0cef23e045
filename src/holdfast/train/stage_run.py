"""One stage of a training: its optimisers, order of images, schedule and step. Open this file to change what a step is
given, or what of a stage a checkpoint carries."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from holdfast.ascents import ascent_of
from holdfast.augment.basic import Augment
from holdfast.data.loaders import Loader, ResidentLoader
from holdfast.data.shuffling import epoch_order
from holdfast.devices import autocast
from holdfast.methods import Stage, State, method_of
from holdfast.models.heads import layer_scales
from holdfast.optim import build_optimizer, set_option
from holdfast.rng import Generators, derive
from holdfast.settings import TrainSettings
from holdfast.train.shared_batch import SharedBatch
from holdfast.train.step import Step, captured, compiled
from holdfast.train.step_parts import Meters, WeightAverage, rate_factor
from holdfast.types import Batch


class StageRun:
    """A stage under way. Made when a stage begins or resumes; ``state_dict`` carries it over a restart.

    images: how many the training set has. order: positions of them that an epoch shows, if not all of them shuffled by
    the seed. fused: as in ``build_optimizer``. note: called with what a user should know.
    """

    def __init__(
        self,
        stage: Stage,
        settings: TrainSettings,
        model: nn.Module,
        state: State,
        *,
        images: int,
        loader: Loader,
        order: Callable[[int], Tensor] | None,
        augment: Augment,
        rng: Generators,
        meters: Meters,
        memory_format: torch.memory_format,
        class_weights: Tensor | None,
        shared: SharedBatch | None,
        fused: bool,
        note: Callable[[str], None],
    ) -> None:
        method, loop, device = method_of(settings), settings.loop, loader.device
        self.stage, self.settings, self.ascent = stage, settings, ascent_of(settings)
        state.stage = stage
        self.trainee = method.trainee(state, model)
        self.average = WeightAverage(self.trainee, loop.ema) if loop.ema else None
        self.scaler = torch.amp.GradScaler(device.type, enabled=loop.precision == "fp16")
        decay = settings.optimizer.layer_decay
        scales = None if decay == 1 else layer_scales(self.trainee, decay)
        build = partial(build_optimizer, settings.optimizer, fused=fused, scales=scales)
        skip = loop.precision == "fp16"  # elsewhere a step that is not finite ends the training
        parameters = dict(self.trainee.named_parameters())
        if (along := method.trained_along(state)) is not None:
            parameters |= along.named_parameters("along")
        self.optimizer = build(parameters.items(), self.ascent.optimizer, skip_nonfinite=skip)
        trained = {id(p) for p in parameters.values()}
        own = [(n, p) for n, p in state.named_parameters() if p.requires_grad and id(p) not in trained]
        if scales is not None:  # an auxiliary network is built as the main one is, under a name of the method's
            scales = {n: scales.get(n.partition(".")[2], 1.0) for n, _ in own}
        self.auxiliary_optimizer = build(own, scales=scales) if own else None
        repeats = method.repeats(state)
        self.positions = torch.arange(images).repeat_interleave(1 if repeats is None else repeats.cpu())
        self.own_order = order
        shown = self.positions if order is None else order(0)
        self.steps_per_epoch = batches(len(shown), loop.batch_size)
        whole = min(images, batches(images, loop.batch_size) * loop.batch_size)
        complete = completing(shared, loader)
        network = compiled(self.trainee) if loop.compiles else self.trainee
        for auxiliary in state.children() if loop.compiles else ():
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
            whole=lambda: map(complete, loader.batches(torch.arange(whole))),
            whole_size=whole,
            ascent=self.ascent,
            clip=settings.optimizer.clip,
            accumulate=loop.accumulate,
            memory_format=memory_format,
            average=self.average,
            class_weights=class_weights,
            shared=shared,
        )
        captures = loop.capture != "off" and device.type == "cuda" and method.capturable
        self.step: Callable[..., None] = self.plain_step
        if captures and not self.ascent.reads_whole_set:
            self.step = captured(self.plain_step, device, note=note if loop.capture == "auto" else None)
        if self.ascent.reads_whole_set:
            cost = self.steps_per_epoch + self.ascent.passes
            each = f"at each of {self.steps_per_epoch} steps per epoch: an epoch costs about {cost:g} plain ones"
            note(f"{self.ascent.name} takes the gradient of all {images} training images {each}")

    @property
    def passes(self) -> float:
        """Forward and backward passes that an image costs, those of auxiliary models and attacks included.

        At most, where an ascent draws other batches: auxiliary models are not trained on those.
        """
        step, ascent = self.plain_step, self.ascent
        loss, beside = step.method.passes(step.state)
        whole = step.whole_size / self.settings.loop.batch_size if ascent.reads_whole_set else 0.0
        return loss * (ascent.passes + whole) + beside * (1 + ascent.other_batches + whole)

    @property
    def evaluated(self) -> nn.Module:
        """The network whose predictions count."""
        return self.trainee if self.average is None else self.average.model

    def order(self, stage: int, epoch: int, *, purpose: str = "order") -> Tensor:
        """What an epoch shows, shuffled by seed, stage and epoch alone unless the training has an order of its own."""
        if self.own_order is not None:
            return self.own_order(epoch)
        seed = derive(self.settings.loop.seed, f"{purpose}/{stage}/{epoch}")
        shuffled = epoch_order(len(self.positions), seed, self.settings.data)
        return self.positions[shuffled][: self.steps_per_epoch * self.settings.loop.batch_size]

    def rate(self, step: int) -> float:
        """The learning rate at a step of this stage."""
        steps, epochs = self.steps_per_epoch, self.stage.epochs
        factor = rate_factor(self.settings.schedule, step, steps_per_epoch=steps, epochs=epochs)
        return self.settings.optimizer.lr * factor

    def follow_schedule(self, step: int) -> None:
        """Set learning rates and the ascent's radius for a step of this stage."""
        rate = self.rate(step)
        for optimizer in (self.optimizer, self.auxiliary_optimizer):
            if optimizer is not None:
                set_option(optimizer, "lr", rate)
        if (radius := self.ascent.radius(step / (self.stage.epochs * self.steps_per_epoch))) is not None:
            set_option(self.optimizer, "rho", radius)

    def state_dict(self) -> dict[str, Any]:
        return {name: part.state_dict() for name, part in self._parts().items()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        for name, part in self._parts().items():
            groups = part.param_groups if isinstance(part, Optimizer) else []
            # the very tensors that hold scheduled options stay: they live on the device, the loaded ones do not
            scheduled = [{k: v for k, v in group.items() if isinstance(v, Tensor)} for group in groups]
            part.load_state_dict(state[name])
            for group, kept in zip(part.param_groups if scheduled else [], scheduled, strict=True):
                group |= kept

    def _parts(self) -> dict[str, Any]:
        names = ("optimizer", "auxiliary_optimizer", "scaler", "average")
        return {name: part for name in names if (part := getattr(self, name)) is not None}


def completing(shared: SharedBatch | None, loader: Loader) -> Callable[[Batch], Batch]:
    """Gives batches of a loader that reads only a rank's own part the images of all ranks."""
    return (lambda batch: batch) if shared is None or isinstance(loader, ResidentLoader) else shared.completed


def batches(count: int, batch_size: int) -> int:
    """Batches per epoch. A last batch of one sample is left out: BatchNorm has no variance for it.

    >>> batches(10, 5), batches(11, 5), batches(12, 5), batches(1, 5)
    (2, 2, 3, 1)
    """
    full, rest = divmod(count, batch_size)
    return full + (rest > 1 or full == 0)
