"""Biased models (LfF's), and how they score training samples while they learn. Open this file to change the score."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from holdfast.data.loaders import Loader, make_loader
from holdfast.data.splits import Dataset
from holdfast.devices import kernels
from holdfast.errors import HoldfastError
from holdfast.methods.lff import Lff
from holdfast.rng import derive
from holdfast.settings import TrainSettings
from holdfast.train.api import prepare
from holdfast.train.engine import Trainer
from holdfast.train.evaluate import predict
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
    """Train a biased model and, alongside, a debiased one (LfF); score the training set after every epoch."""
    loop = settings.loop
    with torch.random.fork_rng([device] if device.type == "cuda" else []):
        torch.manual_seed(derive(loop.seed, "weights"))
        if not isinstance(settings.method, Lff):
            raise HoldfastError(f"method must be lff or lff+biasadv, got {settings.method.name!r}")
        model, _, state = prepare(settings, data)
        torch.manual_seed(derive(loop.seed, "model"))
        scorer = EpochScorer(settings, data, state.biased, device=device, progress=progress)
        with progress:
            Trainer(settings, data, model, state, device=device, folder=None, progress=scorer).run()
    return scorer.result(
        difficulty=relative_difficulty(state.biased_average, state.average, state.labels).cpu(),
        debiased=model.eval(),
    )


def score_biased_model(
    model: nn.Module, settings: TrainSettings, data: Dataset, *, device: torch.device
) -> BiasedModel:
    """The same for a biased model that is trained already: scored once."""
    scorer = EpochScorer(settings, data, model.to(device), device=device, progress=Progress())
    with kernels(settings.loop.precision, deterministic=False):
        scorer.score_epoch()
    return scorer.result()


class EpochScorer(Progress):
    """Has the biased model score the training set after each epoch; all else goes to another progress."""

    def __init__(
        self, settings: TrainSettings, data: Dataset, biased: nn.Module, *, device: torch.device, progress: Progress
    ) -> None:
        self.settings, self.data, self.biased, self.device, self.progress = settings, data, biased, device, progress
        self.labels = data.train.labels.to(device)
        self.epochs = 0
        self.score = torch.zeros(len(data.train), device=device)
        self.wrong = torch.zeros_like(self.score)
        self.probabilities = torch.empty(0)
        self._loader: Loader | None = None

    def score_epoch(self) -> None:
        loop, given = self.settings.loop, self.settings.data
        split = self.data.train
        if self._loader is None:
            size = max(loop.batch_size, 256)
            self._loader = make_loader(
                split, batch_size=size, device=self.device, kind=given.loader, workers=given.workers
            )
        layout = torch.channels_last if loop.channels_last else torch.contiguous_format
        found = predict(
            self.biased, split, self._loader, device=self.device, precision=loop.precision, memory_format=layout
        )
        classes = self.data.num_classes
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
        self.wrong += found.logits.argmax(1) != self.labels
        self.epochs += 1

    def result(self, *, difficulty: Tensor | None = None, debiased: nn.Module | None = None) -> BiasedModel:
        counted = max(self.epochs - 1, 1)
        return BiasedModel(
            score=(self.score / counted).cpu(),
            wrong=(self.wrong / counted).cpu(),
            probabilities=self.probabilities.cpu(),
            biased=self.biased.eval(),
            difficulty=difficulty,
            debiased=debiased,
        )

    def begin(self, stage: str, epochs: int, steps: int, done: int) -> None:
        self.progress.begin(stage, epochs, steps, done)

    def step(self) -> None:
        self.progress.step()

    def epoch(self, record: Mapping[str, Any], epochs: int) -> None:
        self.progress.epoch(record, epochs)
        self.score_epoch()

    def note(self, text: str) -> None:
        self.progress.note(text)


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
