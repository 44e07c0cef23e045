"""The training loop that every method hangs on."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from holdfast.data.augment import Augment
from holdfast.data.loaders import Loader, make_loader
from holdfast.data.splits import Dataset, Split
from holdfast.data.statistics import channel_statistics
from holdfast.errors import HoldfastError
from holdfast.methods import Method, Stage
from holdfast.optim import build_optimizer, set_lr
from holdfast.rng import Generators, derive
from holdfast.settings import TrainSettings
from holdfast.train.average import WeightAverage
from holdfast.train.evaluate import Predictions, predict
from holdfast.train.folder import RunFolder
from holdfast.train.meters import Meters
from holdfast.train.precision import autocast, kernels
from holdfast.train.progress import Progress
from holdfast.train.schedule import rate_factor
from holdfast.train.signals import Interrupted, deferred_signals
from holdfast.train.sinks import Sink
from holdfast.train.step import CapturedStep, Step

LOOK_EVERY = 200
"""Steps between two looks at the meters: often enough to stop a diverged run, too seldom to slow one."""


@dataclass
class Position:
    """Where a training stands: everything counted from 0, pointing at what comes next."""

    stage: int = 0
    epoch: int = 0
    batch: int = 0
    step: int = 0


class Trainer:
    """One training from its first step to its last, whatever interrupts it."""

    def __init__(
        self,
        settings: TrainSettings,
        data: Dataset,
        model: nn.Module,
        method: Method,
        *,
        device: torch.device,
        folder: RunFolder | None,
        progress: Progress,
        sinks: tuple[Sink, ...] = (),
    ) -> None:
        loop = settings.loop
        self.settings, self.data, self.device = settings, data, device
        self.folder, self.progress, self.sinks = folder, progress, sinks
        self.memory_format = torch.channels_last if loop.channels_last else torch.contiguous_format
        self.model = model.to(device, memory_format=self.memory_format)  # type: ignore[call-overload]
        self.method = method.to(device)
        self.rng = Generators(loop.seed, device)
        self.meters = Meters(device)
        self.scaler = torch.amp.GradScaler(device.type, enabled=loop.precision == "fp16")
        self.loaders: dict[int, Loader] = {}
        mean = torch.tensor(channel_statistics(data.train)[0], device=device)
        self.augment = Augment(settings.augment, data.shape, mean)
        self.at = Position()
        self.history: list[dict[str, Any]] = []
        self.best: dict[str, Any] = {}

    def run(self) -> None:
        """Train through all stages, from wherever the last checkpoint left off."""
        loop = self.settings.loop
        resumed = self._load_checkpoint()
        with kernels(loop.precision, deterministic=loop.deterministic), self._stream(), deferred_signals() as self.stop:
            stages = self.method.stages()
            while self.at.stage < len(stages):
                stage = stages[self.at.stage]
                self._enter(stage, resumed)
                resumed = None
                while self.at.epoch < stage.epochs:
                    self._train_epoch(stage)
                    self._end_epoch(stage, last_stage=self.at.stage + 1 == len(stages))
                self.at = Position(stage=self.at.stage + 1, step=self.at.step)
        self._keep_selected()

    def _enter(self, stage: Stage, resumed: dict[str, Any] | None) -> None:
        """Build what belongs to a stage: its optimisers, its schedule, its step."""
        settings, loop = self.settings, self.settings.loop
        if resumed is None:
            self.method.begin(stage, lambda model: self._predict(model, self.data.train).logits)
        self.trainee = self.method.trainee(stage, self.model)
        self.average = WeightAverage(self.trainee, loop.ema) if loop.ema else None
        self.optimizer = build_optimizer(settings.optimizer, self.trainee.parameters())
        own = [p for p in self.method.parameters() if p.requires_grad]
        trained = {id(p) for p in self.trainee.parameters()}
        own = [p for p in own if id(p) not in trained]
        self.auxiliary_optimizer = build_optimizer(settings.optimizer, own) if own else None
        repeats = self.method.repeats(stage)
        count = torch.ones(len(self.data.train), dtype=torch.int64) if repeats is None else repeats.cpu()
        self.positions = torch.arange(len(count)).repeat_interleave(count)
        self.steps_per_epoch = self._batches(len(self.positions))
        if resumed is not None:
            self._restore(resumed)
        step = Step(
            model=torch.compile(self.trainee) if loop.compile else self.trainee,  # type: ignore[arg-type]
            method=self.method,
            optimizer=self.optimizer,
            auxiliary_optimizer=self.auxiliary_optimizer,
            augment=self.augment,
            rng=self.rng,
            meters=self.meters,
            autocast=partial(autocast, loop.precision, self.device),
            scaler=self.scaler,
            clip=settings.optimizer.clip,
            accumulate=loop.accumulate,
            memory_format=self.memory_format,
            average=self.average,
        )
        self.step = CapturedStep(step, note=self._capture_note()) if self._captures() else step
        done = self.at.epoch * self.steps_per_epoch + self.at.batch
        self.progress.begin(stage.name, stage.epochs, self.steps_per_epoch, done)

    def _train_epoch(self, stage: Stage) -> None:
        """Every batch of an epoch once, in an order that depends on seed, stage and epoch alone."""
        started = time.perf_counter()
        if self.at.batch == 0:
            self.meters.reset()
        self.trainee.train()
        self.method.train()
        first = self.meters.seen
        for batch in self._loader(self.data.train).batches(self._order(), start=self.at.batch):
            set_lr(self.optimizer, rate := self._rate(stage))
            if self.auxiliary_optimizer is not None:
                set_lr(self.auxiliary_optimizer, rate)
            self.step(batch)
            self.meters.seen += len(batch)
            self.at.batch += 1
            self.at.step += 1
            self.progress.step()
            if self.at.step % LOOK_EVERY == 0:
                self._require_finite()
            if self.stop.signum is not None:
                self._leave()
        self._require_finite()
        self.seconds = time.perf_counter() - started
        self.images_per_second = (self.meters.seen - first) / self.seconds

    def _end_epoch(self, stage: Stage, *, last_stage: bool) -> None:
        """Record, evaluate, select, save."""
        loop, reading = self.settings.loop, self.meters.read()
        self.at.epoch += 1
        self.at.batch = 0
        last = self.at.epoch == stage.epochs
        record: dict[str, Any] = {
            "stage": stage.name,
            "epoch": self.at.epoch,
            "step": self.at.step,
            "lr": self._peak_lr * self._factor(stage, self.at.epoch * self.steps_per_epoch - 1),
            "train_loss": reading.loss,
            "train_accuracy": reading.accuracy,
            "seconds": self.seconds,
            "images_per_second": self.images_per_second,
        }
        if last or (loop.eval_every and self.at.epoch % loop.eval_every == 0):
            record |= self._evaluate(select=last_stage)
        self.history.append(record)
        self.progress.epoch(record, stage.epochs)
        if self.folder is not None:
            self.folder.append_metrics(record)
        for sink in self.sinks:
            sink.write(record)
        if last or self.at.epoch % loop.checkpoint_every == 0:
            self._save()
        if self.stop.signum is not None and not (last and last_stage):
            self._leave()

    def _evaluate(self, *, select: bool) -> dict[str, float]:
        """Loss and accuracy on the validation set, or the test set where there is none; keep the best weights."""
        model = self.average.model if self.average is not None else self.trainee
        rule = self.settings.loop.select
        measured: dict[str, float] = {}
        for name, split in (("val", self.data.val), ("test", self.data.test)):
            if split is None or (name == "test" and self.data.val is not None and rule != "oracle-test"):
                continue
            seen = self._predict(model, split)
            measured |= {f"{name}_accuracy": seen.accuracy, f"{name}_loss": float(seen.losses.mean())}
            if select and rule != "last" and name == ("test" if rule == "oracle-test" else "val"):
                score = selection_score(rule, seen)
                if not self.best or score > self.best["score"]:
                    weights = {k: v.detach().cpu().clone() for k, v in model.state_dict().items()}
                    self.best = {"score": score, "epoch": self.at.epoch, "model": weights}
        return measured

    def _keep_selected(self) -> None:
        """The model ends with the weights that the selection rule names."""
        if self.best:
            self.model.load_state_dict(self.best["model"])
        elif self.average is not None:
            self.model.load_state_dict(self.average.model.state_dict())

    def _predict(self, model: nn.Module, split: Split) -> Predictions:
        loop = self.settings.loop
        return predict(
            model,
            split,
            self._loader(split),
            device=self.device,
            precision=loop.precision,
            memory_format=self.memory_format,
        )

    def _loader(self, split: Split) -> Loader:
        """One loader a split, made when first needed: resident data is on the device once."""
        if id(split) not in self.loaders:
            data = self.settings.data
            self.loaders[id(split)] = make_loader(
                split,
                batch_size=self.settings.loop.batch_size,
                device=self.device,
                kind=data.loader,
                workers=data.workers,
            )
        return self.loaders[id(split)]

    def _batches(self, count: int) -> int:
        """Batches an epoch. A last batch of one sample is left out: BatchNorm has no variance for it."""
        full, rest = divmod(count, self.settings.loop.batch_size)
        return full + (rest > 1 or full == 0)

    def _order(self) -> Tensor:
        seed = derive(self.settings.loop.seed, f"order/{self.at.stage}/{self.at.epoch}")
        shuffled = torch.randperm(len(self.positions), generator=torch.Generator().manual_seed(seed))
        return self.positions[shuffled][: self.steps_per_epoch * self.settings.loop.batch_size]

    @property
    def _peak_lr(self) -> float:
        return self.settings.optimizer.peak_lr

    def _factor(self, stage: Stage, step: int) -> float:
        return rate_factor(self.settings.schedule, step, steps_per_epoch=self.steps_per_epoch, epochs=stage.epochs)

    def _rate(self, stage: Stage) -> float:
        return self._peak_lr * self._factor(stage, self.at.epoch * self.steps_per_epoch + self.at.batch)

    def _captures(self) -> bool:
        return self.settings.loop.capture != "off" and self.device.type == "cuda" and self.method.capturable

    def _capture_note(self) -> Any:
        return self.progress.note if self.settings.loop.capture == "auto" else None

    @contextmanager
    def _stream(self) -> Iterator[None]:
        """A stream of our own on a GPU: CUDA graphs cannot be captured on the default one."""
        if self.device.type != "cuda":
            yield
            return
        outer, own = torch.cuda.current_stream(self.device), torch.cuda.Stream(self.device)  # type: ignore[no-untyped-call]
        own.wait_stream(outer)
        with torch.cuda.stream(own):
            yield
        outer.wait_stream(own)

    def _require_finite(self) -> None:
        bad = self.meters.read().bad_step
        if bad:
            good = self.folder.checkpoints.newest if self.folder is not None else None
            kept = f"the last good checkpoint is {good}" if good else "no checkpoint was written before it"
            raise HoldfastError(
                f"the loss is not finite at step {bad}; {kept}; try a lower --lr (now {self._peak_lr:g}), "
                "--clip 1, or another --precision"
            )

    def _leave(self) -> None:
        """Save and end, because a signal asked for it."""
        assert self.stop.signum is not None
        self._require_finite()
        self._save()
        where = f"; continue with --resume --out {self.folder.path}" if self.folder else ""
        raise Interrupted(self.stop.signum, f"stopped at step {self.at.step}{where}")

    def _save(self) -> None:
        if self.folder is None:
            return
        cuda = {"cuda": torch.cuda.get_rng_state(self.device)} if self.device.type == "cuda" else {}
        optional = {
            "auxiliary_optimizer": self.auxiliary_optimizer,
            "average": self.average,
        }
        self.folder.checkpoints.save(
            self.at.step,
            {
                "position": vars(self.at),
                "model": self.model.state_dict(),
                "method": self.method.state_dict(),
                "optimizer": self.optimizer.state_dict(),
                "scaler": self.scaler.state_dict(),
                "generators": self.rng.state_dict(),
                "global_rng": {"cpu": torch.get_rng_state(), **cuda},
                "meters": self.meters.state_dict(),
                "history": self.history,
                "best": self.best,
                **{name: part.state_dict() for name, part in optional.items() if part is not None},
            },
        )

    def _load_checkpoint(self) -> dict[str, Any] | None:
        state = self.folder.checkpoints.load() if self.folder is not None else None
        if state is None:
            return None
        self.at = Position(**state["position"])
        self.history, self.best = state["history"], state["best"]
        self.model.load_state_dict(state["model"])
        self.method.load_state_dict(state["method"])
        assert self.folder is not None
        self.folder.rewrite_metrics(self.history)
        self.progress.note(f"continuing at step {self.at.step}")
        return state

    def _restore(self, state: dict[str, Any]) -> None:
        """What belongs to the stage and to the random generators; the weights are loaded already."""
        optimizers = {"optimizer": self.optimizer, "auxiliary_optimizer": self.auxiliary_optimizer}
        for name, optimizer in optimizers.items():
            if optimizer is not None:
                rates = [group["lr"] for group in optimizer.param_groups]
                optimizer.load_state_dict(state[name])
                for group, rate in zip(optimizer.param_groups, rates, strict=True):
                    group["lr"] = rate  # the tensor that lives on the device, not the loaded copy
        self.scaler.load_state_dict(state["scaler"])
        self.meters.load_state_dict(state["meters"])
        if self.average is not None:
            self.average.load_state_dict(state["average"])
        self.rng.load_state_dict(state["generators"])
        torch.set_rng_state(state["global_rng"]["cpu"])
        if self.device.type == "cuda":
            torch.cuda.set_rng_state(state["global_rng"]["cuda"], self.device)


def selection_score(rule: str, seen: Predictions) -> float:
    """What a selection rule maximises."""
    if rule == "val-worst-class":
        score = seen.worst_class
    elif rule == "val-worst-group":
        score = seen.worst_group
    else:
        score = seen.accuracy
    if score is None:
        raise HoldfastError(f"select {rule} needs groups in the validation set, and it has none; use val-worst-class")
    return score
