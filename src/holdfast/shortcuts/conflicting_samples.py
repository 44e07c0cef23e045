"""Which training samples conflict with the shortcut: the result, the ranking, and clusters of what is suspected.

Open this file to change what :func:`holdfast.find_shortcuts` returns, or when it says not to believe the ranking.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from holdfast.data import Dataset
from holdfast.data.splits import bias_alignment
from holdfast.detect.evaluation import evaluate_scores
from holdfast.detect.features import ClassifierExtractor, extract
from holdfast.errors import require
from holdfast.metrics import Estimate
from holdfast.rng import derive
from holdfast.settings import TrainSettings
from holdfast.shortcuts.biased_models import BiasedModel
from holdfast.shortcuts.shortcut_alarm import ShortcutTest
from holdfast.types import Finding, Note

MOST_CLUSTERS = 10
MOST_CLUSTERED = 20_000
"""Suspected samples that are clustered, the likeliest first."""
SUSPECTED = 0.5
"""A sample is suspected if biased models get it wrong in this share of the epochs."""


@dataclass(frozen=True)
class Cluster:
    """Suspected samples with similar features in the biased model: positions in the training set, the likeliest first.

    Each (name, share) is the most frequent of the cluster: its class, the biased models' prediction, its group (None
    where groups are unknown).
    """

    number: int
    positions: tuple[int, ...]
    label: tuple[str, float]
    biased_prediction: tuple[str, float]
    group: tuple[str, float] | None


@dataclass(frozen=True, eq=False, repr=False)
class Shortcuts:
    """How the N training samples of ``data`` relate to the shortcut that biased models take.

    score: (N,) in [0, 1]: 1 − p(y | x) of the biased models, the mean over seeds and epochs. order: (N,) positions, the
    highest score first. wrong: (N,) share of epochs and seeds in which a biased model predicts another class.
    difficulty: (N,) LfF's relative difficulty at the end, the mean over seeds; None for a model that was given.
    biased_prediction: (N,) what the biased models predict at the end. clusters: of the suspected samples, those with
    ``wrong`` of 0.5 or more: hard and mislabelled ones too. test: whether there is a shortcut at all; None for a model
    that was given. precision: average precision against the group labels, base_rate: what a random order would get;
    None without groups. findings: all of it for a report.
    """

    data: Dataset
    settings: TrainSettings
    score: Tensor
    order: Tensor
    wrong: Tensor
    difficulty: Tensor | None
    biased_prediction: Tensor
    biased_models: tuple[BiasedModel, ...]
    clusters: tuple[Cluster, ...] = ()
    test: ShortcutTest | None = None
    precision: Estimate | None = None
    base_rate: float | None = None
    notes: tuple[Note, ...] = ()
    findings: tuple[Finding, ...] = ()

    def __repr__(self) -> str:
        verdict = "not tested"
        if self.test is not None:
            verdict = f"{'a shortcut is likely' if self.test.alarm else 'no sign of one'} (p = {self.test.p:.2g})"
        found = f"{len(self.suspected):,} of {len(self.score):,} training samples suspected"
        return f"<Shortcuts in {self.data.name}: {verdict}; {found}, {len(self.clusters)} clusters>"

    @property
    def suspected(self) -> Tensor:
        """Positions of the suspected samples, the highest score first."""
        return self.order[self.wrong[self.order] >= SUSPECTED]

    @property
    def average_precision(self) -> float | None:
        return None if self.precision is None else self.precision.value


def rank(
    settings: TrainSettings,
    data: Dataset,
    models: tuple[BiasedModel, ...],
    test: ShortcutTest | None,
    *,
    resamples: int,
    seed: int,
) -> Shortcuts:
    """Samples by the mean score of the biased models; group labels only judge the order."""
    score = torch.stack([m.score for m in models]).mean(0)
    require(bool(score.isfinite().all()), "the biased model's outputs are not finite; try a lower --lr")
    difficulties = [m.difficulty for m in models if m.difficulty is not None]
    prediction = torch.stack([m.probabilities for m in models]).mean(0).argmax(1)
    labels, groups = data.train.labels, data.train.groups
    precision, base_rate = None, None
    sides = bias_alignment(labels, groups, data.usual_groups)
    if sides and all(bool(side.any()) for side in sides.values()):
        judged, conflicting = sides["aligned"] | sides["conflicting"], sides["conflicting"]
        drawn = derive(seed, "shortcuts/precision")
        precision = evaluate_scores(score[judged], conflicting[judged], resamples=resamples, seed=drawn).ranking["ap"]
        base_rate = float(conflicting[judged].double().mean())
    return Shortcuts(
        data=data,
        settings=settings,
        score=score,
        order=score.argsort(descending=True, stable=True),
        wrong=torch.stack([m.wrong for m in models]).mean(0),
        difficulty=torch.stack(difficulties).mean(0) if difficulties else None,
        biased_prediction=prediction,
        biased_models=models,
        test=test,
        precision=precision,
        base_rate=base_rate,
        notes=_notes(models, labels),
    )


def _notes(models: tuple[BiasedModel, ...], labels: Tensor) -> tuple[Note, ...]:
    """When not to believe the ranking."""
    right = float(torch.stack([m.probabilities.argmax(1) == labels for m in models]).double().mean())
    chance = float(torch.bincount(labels).max()) / len(labels)
    if right < chance + 0.5 * (1 - chance):
        text = (
            f"the biased models get only {100 * right:.0f} % of the training samples right: there may be no simple "
            "shortcut, or they are not trained enough"
        )
        return (Note("biased-models-underfit", text, "try more --epochs or another --lr", "warning"),)
    if right == 1 and max(float(m.wrong.max()) for m in models) < SUSPECTED:
        text = "the biased models get every training sample right: no sample conflicts with what they learned"
        return (Note("no-sample-conflicts", text, "lower --epochs, or there is no exception to find", "warning"),)
    return ()


def clusters_of(found: Shortcuts, count: int | None) -> tuple[Cluster, ...]:
    """Clusters of the suspected samples. count: how many; one per class by default, ten at most."""
    data, split = found.data, found.data.train
    suspected = found.suspected[:MOST_CLUSTERED]
    if not len(suspected):
        return ()
    wanted = count or min(data.num_classes, MOST_CLUSTERS)
    points = extract(ClassifierExtractor(found.biased_models[0].biased), split.subset(suspected)).features
    assert points is not None
    cluster = k_means(points, wanted, seed=derive(found.settings.loop.seed, "shortcuts/clusters"))
    made = []
    for number in range(int(cluster.max()) + 1):
        own = suspected[cluster == number]
        label = most_frequent(split.labels[own], data.classes)
        prediction = most_frequent(found.biased_prediction[own], data.classes)
        assert label is not None
        assert prediction is not None
        group = most_frequent(split.groups[own], data.group_names)
        made.append(Cluster(number, tuple(own.tolist()), label, prediction, group))
    return tuple(made)


def k_means(points: Tensor, count: int, *, seed: int) -> Tensor:
    """(M,) cluster of each point (M, D), renumbered by size: 0 is the largest."""
    from sklearn.cluster import KMeans  # slow to import

    values = points.double().numpy()
    different = len(np.unique(values, axis=0))  # scikit-learn warns where clusters outnumber points
    fitted = KMeans(min(count, different), n_init=10, random_state=seed % 2**32).fit(values)
    found = torch.from_numpy(fitted.labels_).long()
    order = torch.bincount(found).argsort(descending=True, stable=True)
    return order.argsort()[found]


def most_frequent(values: Tensor, names: tuple[str, ...]) -> tuple[str, float] | None:
    """The most frequent of values (M,) that are known (>= 0), and its share of all.

    >>> most_frequent(torch.tensor([1, 1, 0, -1]), ("a", "b"))
    ('b', 0.5)
    """
    known = values[values >= 0]
    if not len(known) or not names:
        return None
    counts = torch.bincount(known)
    return names[int(counts.argmax())], float(counts.max()) / len(values)
