"""Labels that are probably wrong: held-out predictions of every sample, and confident learning on them.

The training split is judged by cross-validation, every other split by the mean of the same models: nothing is fitted
on a validation or test split. Duplicates stay in one fold, else a model would have been trained on what it judges.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from holdfast.data.data_check import DataSample, sample_of
from holdfast.data.loaders import float_batches
from holdfast.data.splits import Dataset, Split, channel_statistics
from holdfast.detect.features import ClassifierExtractor, extract
from holdfast.devices import resolve_device
from holdfast.errors import HoldfastError, brief, require
from holdfast.metrics.confident_learning import find_label_errors
from holdfast.module_state import evaluating
from holdfast.rng import derive
from holdfast.settings import ModelSettings, TrainSettings, build
from holdfast.settings.command_settings import QualitySettings
from holdfast.train.api import train
from holdfast.train.preparing import build_for
from holdfast.train.progress import Progress
from holdfast.types import Note

SMALL = 10_000
"""Training sets below this many images take batches of 32, so that a few epochs are enough steps."""

LEAST_SKILL = 0.6
"""Of :attr:`JudgedLabels.skill`. Below it models err far more often than labels do, and their errors pass for label
errors: a warning, and neither the share of wrong labels nor that of the list is estimated."""


@dataclass(frozen=True)
class SuspectLabel:
    """A sample whose label is probably wrong.

    probability: of its label, held out. suggested: the class that is more probable, with suggested_probability.
    wrong: the probability that the label is wrong.
    """

    sample: DataSample
    probability: float
    suggested: str
    suggested_probability: float
    wrong: float


@dataclass(frozen=True)
class JudgedLabels:
    """What confident learning says of one split.

    suspects: the least plausible first. noise: the estimated share of wrong labels. accuracy: of the held-out
    predictions against the labels as they are; where it is low, so is the worth of the rest. n: samples judged.
    least_precision: the share of the suspects that are wrong, at least; None where they are too few, or the models too
    weak, to say. skill: how much of what the most frequent class leaves wrong the predictions get right.
    """

    suspects: tuple[SuspectLabel, ...]
    noise: float
    accuracy: float
    n: int
    least_precision: float | None = None
    skill: float = 1.0

    @property
    def weak(self) -> bool:
        return self.skill < LEAST_SKILL

    def warning(self, split: str) -> Note | None:
        """What to say where the models are too weak to judge labels."""
        if not self.weak:
            return None
        text = f"held-out predictions agree with {self.accuracy:.0%} of the {split} labels"
        text += ": too few to tell a wrong label from a hard image, and most of the list may be right"
        remedy = "use a better network (--model resnet18 --pretrained), or more --epochs"
        return Note("weak-label-model", text, remedy, "warning")


def judge_labels(
    data: Dataset, settings: QualitySettings, *, tied: Sequence[Sequence[int]] = (), progress: Progress | None = None
) -> dict[str, JudgedLabels]:
    """Probable label errors by split. tied: positions in the training split that must stay in one fold."""
    found = {}
    for name, p in held_out_probabilities(data, settings, tied=tied, progress=progress).items():
        labels = data.splits[name].labels
        errors = find_label_errors(labels, p)
        suspects = tuple(
            SuspectLabel(
                sample_of(data, name, i),
                float(p[i, labels[i]]),
                data.classes[int(errors.suggested[i])],
                float(p[i, errors.suggested[i]]),
                float(errors.wrong[i]),
            )
            for i in errors.flagged.tolist()
        )
        accuracy = float((p.argmax(1) == labels).double().mean())
        usual = float(torch.bincount(labels).max()) / len(labels)
        skill = (accuracy - usual) / max(1 - usual, 1e-9)
        judged = JudgedLabels(suspects, errors.noise, accuracy, len(labels), errors.least_precision, skill)
        found[name] = replace(judged, least_precision=None) if judged.weak else judged
    return found


def held_out_probabilities(
    data: Dataset, settings: QualitySettings, *, tied: Sequence[Sequence[int]] = (), progress: Progress | None = None
) -> dict[str, Tensor]:
    """(N, K) probabilities by split, of models that were not trained on the sample they judge."""
    show = progress or Progress()
    labels = data.train.labels
    counts = torch.bincount(labels, minlength=data.num_classes)
    rare = int(counts.argmin())
    few = f"class {brief(data.classes[rare])} has {int(counts[rare])} training samples"
    require(
        int(counts.min()) >= settings.folds,
        f"{data.name}: {few}, and each of {settings.folds} folds needs one; use fewer --folds, or add samples",
    )
    fold = assign_folds(labels, tied, settings.folds, derive(settings.seed, "label-errors/folds"))
    fit = _on_features(data, settings, show) if settings.pretrained else _by_training(data, settings, show)
    judged = {"train": torch.zeros(len(labels), data.num_classes)}
    judged |= {
        name: torch.zeros(len(s), data.num_classes) for name, s in data.splits.items() if name != "train" and len(s)
    }
    for number in range(settings.folds):
        show.note(f"label errors: fold {number + 1} of {settings.folds}")
        predict = fit((fold != number).nonzero().flatten(), number)
        own = (fold == number).nonzero().flatten()
        judged["train"][own] = predict("train", own)
        for name in judged:
            if name != "train":
                judged[name] += predict(name, torch.arange(len(judged[name]))) / settings.folds
    return judged


def assign_folds(labels: Tensor, tied: Sequence[Sequence[int]], folds: int, seed: int) -> Tensor:
    """(N,) the fold of every sample: classes are spread evenly, tied samples stay together.

    >>> assign_folds(torch.tensor([0, 0, 1, 1]), [], 2, seed=0).reshape(2, 2).sort(1).values
    tensor([[0, 1],
            [0, 1]])
    >>> len(assign_folds(torch.zeros(6, dtype=torch.int64), [[0, 2, 5]], 3, seed=0)[[0, 2, 5]].unique())
    1
    """
    leader = torch.arange(len(labels))
    for group in tied:
        leader[list(group)] = min(group)
    order = torch.randperm(len(labels), generator=torch.Generator().manual_seed(seed))
    fold = torch.empty_like(leader)
    for label in set(labels.tolist()):
        own = order[(labels[order] == label) & (leader[order] == order)]
        fold[own] = torch.arange(len(own)) % folds
    return fold[leader]


Predict = Callable[[str, Tensor], Tensor]
"""From the name of a split and positions in it (M,) to probabilities (M, K)."""
Fit = Callable[[Tensor, int], Predict]
"""From positions in the training split, and the number of the fold, to a model of them."""


def _by_training(data: Dataset, settings: QualitySettings, progress: Progress) -> Fit:
    device = resolve_device(settings.device)

    def fit(chosen: Tensor, number: int) -> Predict:
        recipe = build(
            TrainSettings,
            {
                "model": settings.model,
                "epochs": settings.epochs,
                "optimizer": "adamw",
                "lr": 4e-3,
                "batch_size": 32 if len(chosen) < SMALL else 128,
                "eval_every": 0,
                "seed": derive(settings.seed, f"label-errors/{number}") % 2**31,
                "device": settings.device,
            },
        )
        part = replace(data, train=data.train.subset(chosen), val=None, test=None, unlabeled=None, notes=())
        model = train(recipe, data=part, progress=progress).model

        @torch.no_grad()
        def predict(name: str, positions: Tensor) -> Tensor:
            images: Split = data.splits[name].subset(positions)
            with evaluating(model):
                return torch.cat([model(x).float().softmax(1).cpu() for x in float_batches(images, device)])

        return predict

    return fit


def _on_features(data: Dataset, settings: QualitySettings, progress: Progress) -> Fit:
    progress.note(f"label errors: features of {settings.model}")
    own = ModelSettings(name=settings.model, pretrained=True)
    network = build_for(data, own, channel_statistics(data.train)).model.to(resolve_device(settings.device))
    features = {name: extract(ClassifierExtractor(network), s).features for name, s in data.splits.items() if len(s)}

    def fit(chosen: Tensor, number: int) -> Predict:
        from sklearn.linear_model import LogisticRegression
        from sklearn.pipeline import make_pipeline
        from sklearn.preprocessing import StandardScaler

        train_features = _given(features["train"])
        classifier = make_pipeline(StandardScaler(), LogisticRegression(C=0.1, max_iter=500))
        classifier.fit(train_features[chosen].numpy(), data.train.labels[chosen].numpy())

        def predict(name: str, positions: Tensor) -> Tensor:
            rows = classifier.predict_proba(_given(features[name])[positions].numpy())
            return torch.from_numpy(rows).float()

        return predict

    return fit


def _given(features: Tensor | None) -> Tensor:
    if features is None:
        raise HoldfastError("this network gives no features; choose another --model")
    return features
