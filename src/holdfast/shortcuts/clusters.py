"""The suspected samples by kind: what the biased model takes for alike."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor, nn

from holdfast.augment.basic import to_float
from holdfast.data.splits import Split
from holdfast.models import penultimate
from holdfast.module_state import evaluating
from holdfast.rng import derive

if TYPE_CHECKING:
    from holdfast.shortcuts.result import Shortcuts

BATCH = 256
MOST_CLUSTERS = 10
MOST_CLUSTERED = 20_000
"""Suspected samples that are clustered, the likeliest first."""
CLEAR = 0.5
"""A sample is suspected from this probability on."""


@dataclass(frozen=True)
class Cluster:
    """Suspected samples that the biased model sees alike: positions in the training set, the likeliest first.

    Each (name, share) is the most frequent of the cluster: its class, what the biased models take it for, its group
    (None where groups are unknown).
    """

    number: int
    positions: tuple[int, ...]
    label: tuple[str, float]
    taken_for: tuple[str, float]
    group: tuple[str, float] | None


def clusters_of(found: Shortcuts, count: int | None, *, device: torch.device) -> tuple[Cluster, ...]:
    """The suspected samples by kind. count: of kinds; one a class by default, ten at most."""
    data, split = found.data, found.data.train
    suspected = found.order[found.member[found.order] >= CLEAR][:MOST_CLUSTERED]
    if not len(suspected):
        return ()
    wanted = count or min(data.num_classes, MOST_CLUSTERS)
    points = features(found.sightings[0].biased, split, suspected, device=device)
    kinds = k_means(points, wanted, seed=derive(found.settings.loop.seed, "shortcuts/clusters"))
    made = []
    for number in range(int(kinds.max()) + 1):
        own = suspected[kinds == number]
        label = most_frequent(split.labels[own], data.classes)
        taken_for = most_frequent(found.taken_for[own], data.classes)
        assert label is not None
        assert taken_for is not None
        group = most_frequent(split.groups[own], data.group_names)
        made.append(Cluster(number, tuple(own.tolist()), label, taken_for, group))
    return tuple(made)


@torch.no_grad()
def features(model: nn.Module, split: Split, positions: Tensor, *, device: torch.device) -> Tensor:
    """(M, D) what the model's head is given for these samples, on the CPU."""
    made = []
    with evaluating(model), penultimate(model) as seen:
        for first in range(0, len(positions), BATCH):
            model(to_float(split.read(positions[first : first + BATCH]).to(device)))
            made.append(seen.features.float().cpu())
    return torch.cat(made)


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
