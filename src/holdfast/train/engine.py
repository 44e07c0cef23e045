"""The training loop: stages, epochs, steps, evaluation, selection, checkpoints. Every training goes through it.

Open this file to change what happens between steps and between epochs; ``stage_run.py`` has what belongs to one stage.
"""

from __future__ import annotations

import math
import shlex
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from torch import Tensor, nn

from holdfast.ascents import ascent_of
from holdfast.augment.basic import Augment
from holdfast.data.loaders import Loader, choose_reading, make_loader
from holdfast.data.splits import Dataset, Split, channel_statistics
from holdfast.devices import kernels, memory_format, own_stream
from holdfast.errors import Interrupted, require
from holdfast.methods import Stage, State, method_of
from holdfast.models.heads import rest_frozen
from holdfast.rng import Generators, derive
from holdfast.settings import TrainSettings, flatten
from holdfast.settings.device_defaults import open_on_device
from holdfast.signals import deferred_signals
from holdfast.trackers import Tracking
from holdfast.train.distributed import Ranks
from holdfast.train.evaluate import Predictions, predict, selection_score
from holdfast.train.folder import RunFolder
from holdfast.train.progress import Progress
from holdfast.train.shared_batch import SharedBatch
from holdfast.train.stage_run import StageRun, completing
from holdfast.train.step import diagnose
from holdfast.train.step_parts import Diverged, Meters, all_finite, class_weights
from holdfast.types import Batch

READ_EVERY = 200
"""Steps between two readings of the meters: often enough to stop a diverged run, too seldom to slow one."""


@dataclass
class Position:
    """Where a training stands: everything counted from 0, pointing at what comes next."""

    stage: int = 0
    epoch: int = 0
    batch: int = 0
    step: int = 0


class Trainer:
    """One training from its first step to its last, whatever interrupts it.

    The loss is the method's (``settings.method``), whose state is given. rng: what it draws from, if not from the seed
    of the settings. order: positions of the training images that an epoch shows, if not all of them shuffled by that
    seed. tracking: where else the metrics go. measure: what else to record after an epoch, of its number and the
    network. fused: as in ``build_optimizer``. ranks: the processes that train together, of which the first has the
    folder.
    """

    def __init__(
        self,
        settings: TrainSettings,
        data: Dataset,
        model: nn.Module,
        state: State,
        *,
        device: torch.device,
        folder: RunFolder | None,
        progress: Progress,
        tracking: Tracking | None = None,
        rng: Generators | None = None,
        order: Callable[[int], Tensor] | None = None,
        measure: Callable[[int, nn.Module], Mapping[str, float]] | None = None,
        fused: bool = True,
        ranks: Ranks | None = None,
    ) -> None:
        loop = settings.loop
        self.settings, self.data, self.device = settings, data, device
        self.folder, self.progress, self.tracking = folder, progress, tracking or Tracking()
        left = open_on_device(settings)
        assert not left, f"{', '.join(left)} must be resolved before training"
        self.memory_format = memory_format(loop.channels_last)
        self.model = model.to(device, memory_format=self.memory_format)  # type: ignore[call-overload]
        self.method, self.state = method_of(settings), state.to(device, memory_format=self.memory_format)  # type: ignore[call-overload]
        self.rng = rng or Generators(loop.seed, device)
        self.own_order, self.measure, self.fused = order, measure, fused
        self.meters = Meters(device, self.method.measures)
        filled = settings.augment.cutout or settings.augment.erasing
        fill = channel_statistics(data.train)[0] if filled else [0.0] * data.shape[0]
        self.augment = Augment(settings.augment, data.shape, torch.tensor(fill, device=device))
        weights = class_weights(loop.class_weights, data.train.labels, data.classes)
        self.class_weights = None if weights is None else weights.to(device)
        self.at = Position()
        self.history: list[dict[str, Any]] = []
        self.best: dict[str, Any] = {}
        self._loaders: dict[int, Loader] = {}
        self.ranks = ranks
        self.shared: SharedBatch | None = None
        if ranks is not None:
            alone = self.method.images_alone and loop.accumulate == 1  # parts of a batch are shared out anew
            self.shared = SharedBatch(ranks, sync_batchnorm=loop.sync_batchnorm, images_alone=alone)

    def run(self) -> None:
        """Train through all stages, from wherever the last checkpoint left off."""
        loop = self.settings.loop
        if self.ranks is not None:
            self.ranks.copy_from_first(self.model, self.state)
        resumed = self._load_checkpoint()
        place, step = self.folder.path if self.folder is not None else None, None if resumed is None else self.at.step
        self.tracking.begin(flatten(self.settings), folder=place, step=step)
        numbers = kernels(loop.precision, deterministic=loop.deterministic)
        with numbers, own_stream(self.device), self._shared_networks(), deferred_signals() as self.stop:
            stages = self.method.stages(loop.epochs)
            while self.at.stage < len(stages):
                stage = stages[self.at.stage]
                self.now = self._enter(stage, resumed)
                if resumed is not None:
                    over = self.at.stage + 1 == len(stages) and self._stage_over(True)
                    done = f"this run is already finished, at step {self.at.step}; nothing is left to train"
                    self.progress.note(done if over else f"continuing at step {self.at.step}")
                resumed = None
                with self.method.attached(self.state, self.now.trainee):
                    while not self._stage_over(final := self.at.stage + 1 == len(stages)):
                        seconds, images = self._train_epoch()
                        self._end_epoch(seconds, images, final=final)
                self.at = Position(stage=self.at.stage + 1, step=self.at.step)
        self._keep_selected()

    def _shared_networks(self) -> AbstractContextManager[object]:
        """Ranks share out what the networks do, and draw differently inside of them."""
        if self.shared is None:
            return nullcontext()
        loop, networks = self.settings.loop, [self.model, *self.state.children()]
        return self.shared.over(self.state, networks, seed=loop.seed, compiled=loop.compiles)

    def _enter(self, stage: Stage, resumed: dict[str, Any] | None) -> StageRun:
        """Begin a stage, or continue in the middle of it."""
        if resumed is None:
            self.state.stage = stage
            if remark := self.method.begin(self.state, lambda model: self._predict(model, self.data.train).logits):
                self.progress.note(remark)
        now = StageRun(
            stage,
            self.settings,
            self.model,
            self.state,
            images=len(self.data.train),
            loader=self.loader(self.data.train),
            order=self.own_order,
            augment=self.augment,
            rng=self.rng,
            meters=self.meters,
            memory_format=self.memory_format,
            class_weights=self.class_weights,
            shared=self.shared,
            fused=self.fused,
            note=self.progress.note,
        )
        if resumed is not None:
            with self._fitting():
                now.load_state_dict(resumed["stage"])
                self.rng.load_state_dict(resumed["generators"])
                self._load_own(resumed, now)
        done = self.at.epoch * now.steps_per_epoch + self.at.batch
        self.progress.begin(stage.name, stage.epochs, now.steps_per_epoch, done)
        return now

    def _train_epoch(self) -> tuple[float, int]:
        """Every batch of an epoch once; (seconds, images)."""
        now, started = self.now, time.perf_counter()
        if self.at.batch == 0:
            self.meters.reset()
        first = self.meters.seen
        self._training_mode()
        for batches in self._epoch_batches():
            now.follow_schedule(self.at.epoch * now.steps_per_epoch + self.at.batch)
            now.step(*batches)
            self.meters.seen += len(batches[0])
            self.at.batch += 1
            self.at.step += 1
            self.progress.step()
            if self.at.step % READ_EVERY == 0:
                self._require_finite()
            if self._must_stop():
                self._leave()
        self._require_finite()
        return time.perf_counter() - started, self.meters.seen - first

    def _must_stop(self, *, wait: bool = False) -> bool:
        """Whether a signal came, to any of the ranks: they stop after the same step."""
        if self.ranks is not None:
            return self.ranks.stop_agreed(self.stop.signum, wait=wait) is not None
        return self.stop.signum is not None

    def _training_mode(self) -> None:
        for network in (self.now.trainee, self.state):
            network.train()
            if self.settings.model.freeze != "none":
                rest_frozen(network)

    def _stage_over(self, final: bool) -> bool:
        """Whether all epochs of a stage are done, or the last stage has stopped improving on the validation set."""
        loop, epoch = self.settings.loop, self.at.epoch
        stale = self.best and final and loop.early_stopping and epoch % loop.eval_every == 0
        return epoch >= self.now.stage.epochs or bool(stale and epoch - self.best["epoch"] >= loop.early_stopping)

    def _epoch_batches(self) -> Iterator[tuple[Batch, ...]]:
        """Batches of the present epoch from the present one on, each with those that method and ascent use beside."""
        at, now, loader = self.at, self.now, self.loader(self.data.train)
        others = ["partners"] * self.method.mixes_others
        others += [f"other-order{n if n > 1 else ''}" for n in range(1, ascent_of(self.settings).other_batches + 1)]
        orders = [now.order(at.stage, at.epoch, purpose=purpose) for purpose in ("order", *others)]
        complete = completing(self.shared, loader)
        return zip(*(map(complete, loader.batches(order, start=at.batch)) for order in orders), strict=True)

    def _end_epoch(self, seconds: float, images: int, *, final: bool) -> None:
        """Record, evaluate, select, save; nothing of a training that has diverged is recorded or saved."""
        self._require_finite_weights()
        loop, now = self.settings.loop, self.now
        self.at.epoch += 1
        self.at.batch = 0
        last = self.at.epoch == now.stage.epochs
        record: dict[str, Any] = {
            "stage": now.stage.name,
            "epoch": self.at.epoch,
            "step": self.at.step,
            "lr": now.rate(self.at.epoch * now.steps_per_epoch - 1),
            **{f"train_{name}": value for name, value in self.meters.read().items()},
            "images": self.meters.seen,
            "passes": self.meters.seen / len(self.data.train) * now.passes,
            "seconds": seconds,
            "images_per_second": images / seconds,
        }
        if last or (loop.eval_every and self.at.epoch % loop.eval_every == 0):
            record |= self._evaluate(select=final)
            last = self._stage_over(final)
        if self.measure is not None:
            record |= self.measure(self.at.epoch, now.evaluated)
        if loop.diagnose and (last or self.at.epoch % loop.diagnose == 0):
            loader = self.loader(self.data.train)
            batch = next(iter(loader.batches(now.order(0, 0))))
            record |= diagnose(now.plain_step, completing(self.shared, loader)(batch))
        self.history.append(record)
        self.progress.epoch(record, now.stage.epochs)
        if self.folder is not None:
            self.folder.append_metrics(record)
        self.tracking.epoch(record)
        if last or self.at.epoch % loop.checkpoint_every == 0:
            self._save()
        if self._must_stop(wait=True):
            self._leave()

    @cached_property
    def usual_groups(self) -> Tensor:
        """(K,) the usual group of each class in training; -1 where it has none. Kept, as every epoch needs it."""
        return self.data.usual_groups

    def _evaluate(self, *, select: bool) -> dict[str, float]:
        """Loss and accuracy on the validation set, or the test set where there is none, and the accuracy of its
        bias-aligned and bias-conflicting samples where groups are known; keep the best weights."""
        model, rule = self.now.evaluated, self.settings.loop.rule
        measured: dict[str, float] = {}
        for name, split in (("val", self.data.val), ("test", self.data.test)):
            if split is None or (name == "test" and self.data.val is not None and rule != "oracle-test"):
                continue
            seen = self._predict(model, split)
            loss = float(seen.losses.mean())
            if not math.isfinite(loss):
                raise self._diverged(f"the loss on the {name} set is {loss} after step {self.at.step}")
            measured |= {f"{name}_accuracy": seen.accuracy, f"{name}_loss": loss}
            measured |= {f"{name}_{kind}_accuracy": own for kind, own in seen.by_bias(self.usual_groups).items()}
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
            self.progress.note(self._what_was_kept())
        elif self.now.evaluated is not self.now.trainee:
            self.model.load_state_dict(self.now.evaluated.state_dict())

    def _what_was_kept(self) -> str:
        loop, epochs = self.settings.loop, self.now.stage.epochs
        ended: int = self.history[-1]["epoch"]
        score = abs(self.best["score"])  # of a loss, its negative
        shown = f"{score:.4f}" if loop.rule == "val-loss" else f"{100 * score:.1f} %"
        kept = f"kept the weights of epoch {self.best['epoch']}, the best by {loop.rule} ({shown})"
        stopped = f"stopped after epoch {ended} of {epochs}: no better for {loop.early_stopping} epochs; "
        return stopped * (ended < epochs) + kept

    def _predict(self, model: nn.Module, split: Split) -> Predictions:
        precision, order = self.settings.loop.precision, self.memory_format
        return predict(model, split, self.loader(split), device=self.device, precision=precision, memory_format=order)

    def loader(self, split: Split) -> Loader:
        """The loader of a split, made when first needed: resident data is on the device once."""
        if id(split) not in self._loaders:
            data, size = self.settings.data, self.settings.loop.batch_size
            options: dict[str, Any] = {"kind": data.loader, "workers": data.workers, "decode": data.decode}
            options["passes"] = self.settings.loop.epochs
            if self.ranks is not None:  # a host with other cores would choose otherwise, and wait for what none sends
                own = self.ranks.from_first({"kind": choose_reading(split, **options).kind})
                options |= own or {}
                options["share"] = self.ranks.rank, self.ranks.size
            self._loaders[id(split)] = make_loader(split, batch_size=size, device=self.device, **options)
        return self._loaders[id(split)]

    def _require_finite(self) -> None:
        if bad := self.meters.bad_step:
            raise self._diverged(f"the loss is not finite at step {bad}")

    def _require_finite_weights(self) -> None:
        """A loss is measured before its step: what the last step did shows in the weights alone."""
        if not all_finite((self.now.trainee, self.now.evaluated, self.state)):
            raise self._diverged(f"the weights are not finite after step {self.at.step}")

    def _diverged(self, what: str) -> Diverged:
        good = self.folder.checkpoints.newest if self.folder is not None else None
        kept = f"the last good checkpoint is {good}" if good else "no checkpoint was written before it"
        rate = self.settings.optimizer.lr
        return Diverged(f"{what}; {kept}; try a lower --lr (now {rate:g}), --clip 1, or another --precision")

    def _leave(self) -> None:
        """Save and stop, because a signal came."""
        signum = self.stop.signum if self.ranks is None else self.ranks.agreed_signal
        assert signum is not None
        self._require_finite()
        self._require_finite_weights()
        self._save()
        if self.ranks is not None:
            self.ranks.wait_for_all()  # a rank that ends makes torchrun end the others, also one that is writing
        remedy = f"continue with --resume --out {shlex.quote(str(self.folder.path))}" if self.folder else ""
        raise Interrupted(signum, f"stopped at step {self.at.step}", remedy=remedy)

    def _save(self) -> None:
        """Write a checkpoint. Of several ranks the first writes it, and each has a part in it."""
        own = self._own_state() if self.ranks is None else self.ranks.exchange(self._own_state())
        if isinstance(own, list):
            self._require_one_model([each.pop("norm") for each in own])
        if self.folder is None:
            return
        parts = {"model": self.model, "method": self.state, "stage": self.now, "generators": self.rng}
        state: dict[str, Any] = {"position": vars(self.at), "history": self.history, "best": self.best}
        state |= {name: part.state_dict() for name, part in {**parts, "meters": self.meters}.items()}
        state |= own if isinstance(own, dict) else {"ranks": own}
        self.folder.save(self.at.step, state)

    def _require_one_model(self, norms: list[float]) -> None:
        """Refuse ranks whose weights have come apart, before a checkpoint pretends that they are one model."""
        same = all(math.isclose(norm, norms[0], rel_tol=1e-6) for norm in norms)
        cause = "each must use the same parameters in every step (no branches on the values of a batch)"
        require(same, f"the weights of the ranks have come apart at step {self.at.step} (norms {norms}); {cause}")

    def _own_state(self) -> dict[str, Any]:
        """What differs from one rank to another: torch's own generators, and what an ascent apart remembers."""
        state: dict[str, Any] = {"global_rng": {"cpu": torch.get_rng_state()}}
        if self.device.type == "cuda":
            state["global_rng"]["cuda"] = torch.cuda.get_rng_state(self.device)
        if self.shared is not None:
            state["norm"] = math.sqrt(sum(float(p.detach().double().square().sum()) for p in self.model.parameters()))
            state["shared"] = self.shared.state_dict()
            state["optimizer"] = self.now.optimizer.state_dict() if self.now.ascent.per_rank else None
        return state

    def _load_own(self, state: dict[str, Any], now: StageRun) -> None:
        """Other ranks than those that wrote it, fewer or more, continue with seeds of their own."""
        size, rank = (1, 0) if self.ranks is None else (self.ranks.size, self.ranks.rank)
        written = state.get("ranks", [state])
        own = written[rank] if size == len(written) else written[0]
        if self.shared is not None and "shared" in own:
            self.shared.load_state_dict(own["shared"])
        elif self.shared is not None:
            self.shared.load_state_dict({"random": own["global_rng"]["cpu"]})
        if self.shared is not None and own.get("optimizer"):
            now.load_state_dict({**state["stage"], "optimizer": own["optimizer"]})
        if size != len(written):
            torch.manual_seed(derive(self.settings.loop.seed, f"ranks/{self.at.step}/{rank}"))
            return
        torch.set_rng_state(own["global_rng"]["cpu"])
        if self.device.type == "cuda":
            torch.cuda.set_rng_state(own["global_rng"]["cuda"], self.device)

    def _fitting(self) -> AbstractContextManager[None]:
        """Around the use of a checkpoint: the rank that has the folder says what does not fit."""
        return nullcontext() if self.folder is None else self.folder.checkpoints.fitting()

    def _load_checkpoint(self) -> dict[str, Any] | None:
        """Weights and position of the last checkpoint; the stage takes the rest when it is entered."""
        state = self.folder.checkpoints.load(self.progress.note) if self.folder is not None else None
        if self.ranks is not None:
            state = self.ranks.from_first(state)
        if state is None:
            return None
        with self._fitting():
            self.at = Position(**state["position"])
            self.history, self.best = state["history"], state["best"]
            self.model.load_state_dict(state["model"])
            self.state.load_state_dict(state["method"])
            self.meters.load_state_dict(state["meters"])
        if self.folder is not None:
            self.folder.rewrite_metrics(self.history)
        return state
