"""Biased models (LfF's), and how they score training samples while they learn. Open this file to change the score."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from holdfast.augment.basic import to_float
from holdfast.data.loaders import make_loader
from holdfast.data.splits import Dataset, Split
from holdfast.devices import autocast, kernels, memory_format
from holdfast.errors import HoldfastError
from holdfast.methods import State
from holdfast.methods.lff import Lff
from holdfast.module_state import evaluating
from holdfast.rng import derive
from holdfast.settings import TrainSettings
from holdfast.train.engine import Trainer
from holdfast.train.evaluate import predict
from holdfast.train.preparing import prepare
from holdfast.train.progress import Progress


@dataclass(frozen=True, eq=False)
class BiasedModel:
    """A biased model and how it scores the N training samples, on the CPU.

    score: (N,) 1 − p(y | x), the mean over epochs but the first. wrong: (N,) share of the same epochs in which it
    predicts another class. probabilities: (N, K) at the end. difficulty: (N,) LfF's relative difficulty at the end;
    None for a model that was trained elsewhere. debiased: the model that was trained alongside.
    """

    score: Tensor
    wrong: Tensor
    probabilities: Tensor
    biased: nn.Module
    difficulty: Tensor | None = None
    debiased: nn.Module | None = None


def train_biased_model(
    settings: TrainSettings, data: Dataset, *, device: torch.device, progress: Progress
) -> BiasedModel:
    """Train a biased model and, alongside, a debiased one; score the training set after every epoch.

    The method of the settings must be lff."""
    with _seeded(settings, device):
        model, state = _prepared(settings, data)
        torch.manual_seed(derive(settings.loop.seed, "model"))
        scorer = EpochScorer(settings, data, state.biased, device=device)
        with progress:
            Trainer(
                settings, data, model, state, device=device, folder=None, progress=progress, measure=scorer.score_epoch
            ).run()
    difficulty = relative_difficulty(state.biased_average, state.average, state.labels).cpu()
    return replace(scorer.result(), difficulty=difficulty, debiased=model.eval())


class _Alongside(Lff):
    """LfF that does not measure the network trained alongside the biased one: how often a stand-in is right tells
    nothing."""

    measures: ClassVar[tuple[str, ...]] = ()

    def measured(self, outputs: Tensor, y: Tensor) -> tuple[Tensor, ...]:
        return ()


def held_out_logits(
    settings: TrainSettings,
    data: Dataset,
    held_out: Split,
    *,
    views: Callable[[Tensor, Tensor], Iterable[Tensor]],
    device: torch.device,
    progress: Progress,
) -> Tensor:
    """(V, M, K) what a biased model says of each view of M samples it is not trained on: the mean logits over the
    second half of the epochs, on the CPU.

    views: of images in [0, 1] (B, C, H, W), given the mean image of the held-out ones (1, C, H, W). It takes half the
    time of a training: the debiased model has no influence on the biased one, so what is trained alongside is a linear
    layer on the mean colour.
    """
    loop, given = settings.loop, settings.data
    layout = memory_format(loop.channels_last)
    size, counted = max(loop.batch_size, 256), loop.epochs - loop.epochs // 2
    how: dict[str, Any] = {"kind": given.loader, "workers": given.workers, "passes": loop.epochs}
    loader = make_loader(held_out, batch_size=size, device=device, **how)
    everything = torch.arange(len(held_out))
    total = torch.zeros(data.shape, dtype=torch.float64, device=device)
    for batch in loader.batches(everything):
        total += to_float(batch.x).double().sum(0)
    mean = (total / len(held_out)).float()[None]
    logits = torch.zeros(0)

    def add(epoch: int, _: nn.Module) -> dict[str, float]:
        nonlocal logits
        shown = {"train_loss": float(state.biased_average.nanmean())}  # the biased model's, not that of the layer
        if epoch <= loop.epochs - counted:
            return shown
        parts = []
        with torch.no_grad(), evaluating(state.biased), autocast(loop.precision, device):
            for batch in loader.batches(everything):
                seen = (view.contiguous(memory_format=layout) for view in views(to_float(batch.x), mean))
                parts.append(torch.stack([state.biased(view).float() for view in seen]).cpu())
        now = torch.cat(parts, 1) / counted
        logits = now if not len(logits) else logits + now
        return shown

    with _seeded(settings, device):
        _, state = _prepared(settings, data)
        torch.manual_seed(derive(loop.seed, "model"))
        alongside = nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(data.shape[0], data.num_classes))
        settings = replace(settings, method=_Alongside(**vars(settings.method)))
        with progress:
            Trainer(settings, data, alongside, state, device=device, folder=None, progress=progress, measure=add).run()
    return logits


def _prepared(settings: TrainSettings, data: Dataset) -> tuple[nn.Module, State]:
    """The network, and the state of a method that need not tell anybody to look for a shortcut."""
    made = prepare(settings, data)
    made.state.context = replace(made.state.context, searching=True)
    return made.network, made.state


@contextmanager
def _seeded(settings: TrainSettings, device: torch.device) -> Iterator[None]:
    """Weights are drawn by the seed of the settings; whoever calls keeps torch's own state."""
    with torch.random.fork_rng([device] if device.type == "cuda" else []):
        torch.manual_seed(derive(settings.loop.seed, "weights"))
        yield


def score_biased_model(
    model: nn.Module, settings: TrainSettings, data: Dataset, *, device: torch.device
) -> BiasedModel:
    """The same for a biased model that is trained already: scored once."""
    scorer = EpochScorer(settings, data, model.to(device), device=device)
    with kernels(settings.loop.precision, deterministic=False):
        scorer.score_epoch()
    return scorer.result()


class EpochScorer:
    """Has the biased model score the training set after each epoch."""

    def __init__(self, settings: TrainSettings, data: Dataset, biased: nn.Module, *, device: torch.device) -> None:
        self.loop, self.data, self.biased, self.device = settings.loop, data, biased, device
        self.labels = data.train.labels.to(device)
        self.epochs = 0
        self.score = torch.zeros(len(data.train), device=device)
        self.wrong = torch.zeros_like(self.score)
        self.probabilities = torch.empty(0)
        size, given = max(self.loop.batch_size, 256), settings.data
        how: dict[str, Any] = {"kind": given.loader, "workers": given.workers, "passes": self.loop.epochs}
        self.loader = make_loader(data.train, batch_size=size, device=device, **how)

    def score_epoch(self, epoch: int = 0, model: nn.Module | None = None) -> dict[str, float]:
        """Adds nothing to the record of the epoch, nor needs the debiased model: what a training may measure."""
        classes, precision = self.data.num_classes, self.loop.precision
        layout = memory_format(self.loop.channels_last)
        found = predict(
            self.biased, self.data.train, self.loader, device=self.device, precision=precision, memory_format=layout
        )
        if found.logits.ndim != 2 or found.logits.shape[1] != classes:
            raise HoldfastError(
                f"the biased model gives outputs of shape {tuple(found.logits.shape[1:])} per image, and "
                f"{self.data.name} has {classes} classes; they must match"
            )
        self.probabilities = found.logits.softmax(1)
        own = self.probabilities.gather(1, self.labels[:, None])[:, 0]
        if self.epochs == 1:  # in its first epoch the model has hardly learned anything: it counts only alone
            self.score.zero_()
            self.wrong.zero_()
        self.score += 1 - own
        self.wrong += ~found.correct
        self.epochs += 1
        return {}

    def result(self) -> BiasedModel:
        counted = max(self.epochs - 1, 1)
        score, wrong = (self.score / counted).cpu(), (self.wrong / counted).cpu()
        return BiasedModel(score, wrong, self.probabilities.cpu(), self.biased.eval())


def relative_difficulty(biased: Tensor, debiased: Tensor, labels: Tensor) -> Tensor:
    """(N,) b/(b + d) of two models' losses, each over the largest of its class: LfF's weight. NaN is not seen yet: 0.5.

    >>> both = torch.tensor([2.0, 1.0]), torch.tensor([1.0, 1.0])
    >>> relative_difficulty(*both, torch.tensor([0, 0]))
    tensor([0.5000, 0.3333])
    """
    parts = []
    for losses in (biased, debiased):
        filled = losses.nan_to_num(0.0)
        largest = filled.new_zeros(int(labels.max()) + 1).scatter_reduce_(0, labels, filled, "amax")
        parts.append(losses / largest[labels].clamp_min(torch.finfo(losses.dtype).tiny))
    weight = parts[0] / (parts[0] + parts[1] + 1e-8)
    return torch.where(weight.isnan(), 0.5, weight)
