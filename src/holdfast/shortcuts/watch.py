"""Watch biased models learn: which training samples stay hard for a model that learns what is easy."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Self

import torch
from torch import Tensor, nn

from holdfast.data.loaders import Loader, make_loader
from holdfast.data.splits import Dataset
from holdfast.data.statistics import channel_statistics
from holdfast.devices import kernels
from holdfast.errors import HoldfastError
from holdfast.methods import Context
from holdfast.methods.lff import Lff
from holdfast.models import build_model
from holdfast.rng import derive
from holdfast.settings import TrainSettings
from holdfast.train.engine import Trainer
from holdfast.train.evaluate import predict
from holdfast.train.progress import Progress


@dataclass(frozen=True, eq=False)
class Sighting:
    """What one biased model showed of the N training samples, on the CPU.

    surprise: (N,) 1 − p(y | x) of the biased model, the mean over epochs but the first. wrong: (N,) share of the same
    epochs in which it predicts another class. probabilities: (N, K) at the end. difficulty: (N,) LfF's relative
    difficulty at the end; None for a model that was taken as it is.
    """

    surprise: Tensor
    wrong: Tensor
    probabilities: Tensor
    biased: nn.Module
    difficulty: Tensor | None = None
    debiased: nn.Module | None = None


def watch(settings: TrainSettings, data: Dataset, *, device: torch.device, progress: Progress) -> Sighting:
    """Train a biased model and, alongside, a debiased one (LfF), and look at the training set after every epoch."""
    loop = settings.loop
    with torch.random.fork_rng([device] if device.type == "cuda" else []):
        torch.manual_seed(derive(loop.seed, "weights"))
        mean, std = channel_statistics(data.train)

        def make() -> nn.Module:
            return build_model(
                settings.model.name,
                num_classes=data.num_classes,
                in_channels=data.shape[0],
                image_size=data.shape[1:],
                mean=mean,
                std=std,
                pretrained=settings.model.pretrained,
                weights=settings.model.weights,
            ).model

        model = make()
        context = Context(data.num_classes, data.train.labels, data.train.groups, loop.epochs, make_model=make)
        method = settings.method
        if not isinstance(method, Lff):
            raise HoldfastError(f"method must be lff or lff+biasadv, got {method.name!r}")
        state = method.start(context)
        torch.manual_seed(derive(loop.seed, "model"))
        looker = Looker(settings, data, state.biased, device=device, progress=progress)
        with looker:
            Trainer(settings, data, model, state, device=device, folder=None, progress=looker).run()
    return looker.sighting(
        difficulty=relative_difficulty(state.biased_average, state.average, state.labels).cpu(),
        debiased=model.eval(),
    )


def take(model: nn.Module, settings: TrainSettings, data: Dataset, *, device: torch.device) -> Sighting:
    """The sighting of a biased model that is there already: one look."""
    looker = Looker(settings, data, model.to(device), device=device, progress=Progress())
    with kernels(settings.loop.precision, deterministic=False):
        looker.look()
    return looker.sighting()


class Looker(Progress):
    """Passes on what it hears of a training, and after each epoch has the biased model judge the training set."""

    def __init__(
        self, settings: TrainSettings, data: Dataset, biased: nn.Module, *, device: torch.device, progress: Progress
    ) -> None:
        self.settings, self.data, self.biased, self.device, self.progress = settings, data, biased, device, progress
        self.labels = data.train.labels.to(device)
        self.looks = 0
        self.surprise = torch.zeros(len(data.train), device=device)
        self.wrong = torch.zeros_like(self.surprise)
        self.probabilities = torch.empty(0)
        self._loader: Loader | None = None

    def look(self) -> None:
        loop, given = self.settings.loop, self.settings.data
        split = self.data.train
        if self._loader is None:
            size = max(loop.batch_size, 256)
            self._loader = make_loader(
                split, batch_size=size, device=self.device, kind=given.loader, workers=given.workers
            )
        layout = torch.channels_last if loop.channels_last else torch.contiguous_format
        seen = predict(
            self.biased, split, self._loader, device=self.device, precision=loop.precision, memory_format=layout
        )
        classes = self.data.num_classes
        if seen.logits.ndim != 2 or seen.logits.shape[1] != classes:
            raise HoldfastError(
                f"the biased model gives outputs of shape {tuple(seen.logits.shape[1:])} an image, and "
                f"{self.data.name} has {classes} classes; they must match"
            )
        self.probabilities = seen.logits.softmax(1)
        own = self.probabilities.gather(1, self.labels[:, None])[:, 0]
        if self.looks == 1:  # in its first epoch the model has hardly learned anything: that look counts only alone
            self.surprise.zero_()
            self.wrong.zero_()
        self.surprise += 1 - own
        self.wrong += seen.logits.argmax(1) != self.labels
        self.looks += 1

    def sighting(self, *, difficulty: Tensor | None = None, debiased: nn.Module | None = None) -> Sighting:
        counted = max(self.looks - 1, 1)
        return Sighting(
            surprise=(self.surprise / counted).cpu(),
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
        self.look()

    def note(self, text: str) -> None:
        self.progress.note(text)

    def __enter__(self) -> Self:
        inner: AbstractContextManager[Progress] = self.progress
        inner.__enter__()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.progress.__exit__(kind, error, trace)


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
