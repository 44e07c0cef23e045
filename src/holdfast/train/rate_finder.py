"""A learning-rate range test (Smith, 2017): train at rates that rise, and see where the loss falls fastest."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import nn

from holdfast.data import Dataset, load
from holdfast.data.usable_data import admitted
from holdfast.devices import kernels, own_stream, resolve_device
from holdfast.errors import HoldfastError, Interrupted, require
from holdfast.models.heads import freeze_backbone
from holdfast.optim import set_option
from holdfast.rng import derive
from holdfast.settings import MethodSettings, TrainSettings, build
from holdfast.signals import deferred_signals
from holdfast.train.engine import Trainer
from holdfast.train.preparing import copy_of, load_data, prepare
from holdfast.train.progress import Progress, make_progress

LOWEST, HIGHEST, STEPS = 1e-6, 10.0, 100
SMOOTHING = 3.0
"""Standard deviation, in steps, of the window that losses are averaged over. It is centred: a running mean would lag
behind, and with it the suggestion."""
BLOWN_UP = 4.0
"""The test ends when the running loss is so many times the lowest so far."""
ROWS, WIDTH = 16, 40
"""Size of the curve as text."""


@dataclass(frozen=True)
class RateCurve:
    """What a range test found. losses: smoothed, one per rate that was tried. suggestion: where they fall fastest."""

    rates: tuple[float, ...]
    losses: tuple[float, ...]
    suggestion: float

    @property
    def lowest(self) -> float:
        """The rate at which the loss was lowest; beyond it, training begins to fail."""
        return self.rates[self.losses.index(min(self.losses))]

    def __str__(self) -> str:
        """The curve as text, a bar per rate."""
        chosen = sorted({round(i * (len(self.rates) - 1) / (ROWS - 1)) for i in range(ROWS)})
        nearest = min(chosen, key=lambda i: abs(math.log(self.rates[i] / self.suggestion)))
        largest = max(self.losses)
        lines = [f"{'rate':>8}  {'loss':>7}"]
        for i in chosen:
            bar = "#" * max(1, round(WIDTH * self.losses[i] / largest))
            lines.append(f"{self.rates[i]:8.1e}  {self.losses[i]:7.4f}  {bar}{' <- suggested' * (i == nearest)}")
        why = f"the loss falls fastest there; it is lowest at {self.lowest:.2g}"
        return "\n".join([*lines, f"suggested: --lr {self.suggestion:.2g} ({why})"])


def find_lr(
    data: Any,
    *,
    model: str | nn.Module = "convnet",
    method: str | Mapping[str, Any] | MethodSettings = "erm",
    steps: int = STEPS,
    progress: bool | None = None,
    **settings: Any,
) -> RateCurve:
    """A learning rate to begin with, for a training that ``holdfast.fit`` would do with the same arguments.

    Print the result for a small curve; ``suggestion`` is the rate. Nothing is written, and a model of yours stays as it
    is. See :func:`find_rate` for what is done.

    >>> found = find_lr("digits", optimizer="adamw", batch_size=16, device="cpu", steps=30)
    >>> 1e-6 < found.suggestion < found.lowest <= 10
    True
    """
    named: dict[str, Any] = {"method": method, **settings}
    own_data: Dataset | None = None
    if isinstance(data, str | Path):
        named["data"] = str(data)
    else:
        own_data = admitted(data if isinstance(data, Dataset) else load(data), training=True)
    if isinstance(model, str):
        named["model"] = model
    own_model = None if isinstance(model, str) else model
    resolved = build(TrainSettings, named)
    return find_rate(resolved, data=own_data, model=own_model, steps=steps, progress=make_progress(progress))


def find_rate(
    settings: TrainSettings,
    *,
    data: Dataset | None = None,
    model: nn.Module | None = None,
    steps: int = STEPS,
    progress: Progress | None = None,
) -> RateCurve:
    """A learning rate for a training with these settings; nothing is written, and a given model stays as it is.

    Steps of the real training (its method, ascent, augmentation, batch size) at rates that rise evenly on a logarithmic
    scale from 1e-6 to 10, from fresh weights. Of a method in stages it is the first. settings.optimizer.lr is not used.
    """
    require(steps >= 10, f"steps must be >= 10, got {steps}")
    pretrain = settings.model.pretrain
    require(pretrain == "none", f"a search for a learning rate does not pretrain ({pretrain}); leave out pretrain")
    settings, progress = settings.resolved(), progress or Progress()
    if settings.loop.compile == "auto":  # a hundred steps never pay for it
        settings = replace(settings, loop=replace(settings.loop, compile="off"))
    device = resolve_device(settings.loop.device)
    data = data or load_data(settings)
    with torch.random.fork_rng([device] if device.type == "cuda" else []):
        torch.manual_seed(derive(settings.loop.seed, "weights"))
        own = None if model is None else copy_of(model, Progress())
        made = prepare(settings, data, model=own, progress=progress)
        settings, network = made.settings, made.network
        if settings.model.freeze != "none":
            freeze_backbone(network)
        torch.manual_seed(derive(settings.loop.seed, "model"))
        trial = _Trial(settings, data, network, made.state, device=device, folder=None, progress=progress)
        rates = [LOWEST * (HIGHEST / LOWEST) ** (i / (steps - 1)) for i in range(steps)]
        with progress:
            losses = trial.losses_at(rates)
    return curve_of(rates[: len(losses)], losses)


def curve_of(rates: Sequence[float], losses: Sequence[float]) -> RateCurve:
    """The smoothed curve of losses and the rate at which it falls most per step, before its lowest point."""
    from scipy.ndimage import gaussian_filter1d  # type: ignore[import-untyped]  # slow to import

    smooth = [float(value) for value in gaussian_filter1d(list(losses), SMOOTHING, mode="nearest")]
    lowest = smooth.index(min(smooth))
    falls = [smooth[i - 1] - smooth[i + 1] for i in range(1, max(2, min(lowest, len(smooth) - 1)))]
    if lowest < 2 or max(falls) <= 0:
        what = f"the loss only rises, from {smooth[0]:.4g}, at every rate from {rates[0]:.1g} on"
        raise HoldfastError(f"no learning rate can be suggested: {what}; check the labels and the preprocessing")
    return RateCurve(tuple(rates), tuple(smooth), rates[1 + falls.index(max(falls))])


class _Trial(Trainer):
    """A training that is thrown away."""

    def losses_at(self, rates: Sequence[float]) -> list[float]:
        """The loss of one step at each rate, until it is not finite or has blown up."""
        loop = self.settings.loop
        losses: list[float] = []
        numbers = kernels(loop.precision, deterministic=loop.deterministic)
        with numbers, own_stream(self.device), deferred_signals() as self.stop:
            self.now = self._enter(self.method.stages(loop.epochs)[0], None)
            with self.method.attached(self.state, self.now.trainee):
                self._training_mode()
                while not self._done(losses, len(rates)):
                    for batches in self._epoch_batches():
                        if self._done(losses, len(rates)):
                            break
                        losses.append(self._step_at(rates[len(losses)], batches))
                    self.at.epoch += 1
        return [loss for loss in losses if math.isfinite(loss)]

    def _step_at(self, rate: float, batches: tuple[object, ...]) -> float:
        for optimizer in (self.now.optimizer, self.now.auxiliary_optimizer):
            if optimizer is not None:
                set_option(optimizer, "lr", rate)
        self.meters.reset()
        self.now.step(*batches)
        self.meters.seen = len(batches[0])  # type: ignore[arg-type]
        self.progress.step()
        if self.stop.signum is not None:
            raise Interrupted(self.stop.signum, "stopped the search for a learning rate")
        return self.meters.read()["loss"]

    @staticmethod
    def _done(losses: list[float], most: int) -> bool:
        if len(losses) >= most or (losses and not math.isfinite(losses[-1])):
            return True
        recent = losses[-3:]
        return len(losses) > 10 and min(recent) > BLOWN_UP * min(losses)
