"""Clusters of the test images by the model's own features: parts of the data that no attribute names.

A model that follows a shortcut has features of the shortcut, so the images it fails on lie together there, also where
nothing that is measured in pixels sets them apart. Clusters are made within each class, for a shortcut is right in one
class and wrong in another (Sohoni et al., 2020), and over all classes. The check ``slices`` tests them; what they are
called is made here too.

Features also hold the decision itself, and "cats that the model takes for dogs" would be a weak part of any model. So a
cluster counts only if it stands apart from the rest, or is one of what the logits do not explain of the features.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Any, Final

import numpy as np
import torch
from torch import Tensor

from holdfast.audits.sample_passes import Rows, SamplePass
from holdfast.audits.subject import Subject
from holdfast.augment.basic import to_float
from holdfast.detect.features import ClassifierExtractor
from holdfast.errors import HoldfastError
from holdfast.rng import derive

COUNTS: Final = (2, 4, 8, 16)
"""Numbers of clusters that are tried, as long as they hold LEAST samples each on average."""
LEAST: Final = 10
"""Samples a part must have on the half where it is found."""
DIMENSIONS: Final = 32
"""Principal components of the features that distances are measured in."""
MOST_STEPS: Final = 30
"""Of k-means; what moves later is a few samples between clusters of one class."""
TELLING: Final = 0.3
"""A property tells a cluster from the rest where the distributions are at least so far apart, of at most 1, and"""
EXPLAINED: Final = 8
"""Principal components of the logits that are taken out of the features, at most; and one for so many samples."""
APART: Final = 4.0
"""Distance of a cluster from the rest in standard deviations (Ashman et al., 1994), along the line between their means,
on the half that did not make it. A single bell that is cut in two has 2.7, a flat distribution 3.5."""
CRITICAL: Final = 1.63
"""further than the 1 % point of the Kolmogorov-Smirnov test, this times the root of 1/n + 1/m."""


@dataclass(frozen=True)
class Clustering:
    """Into how many clusters the samples of each class, or of all classes together, were parted.

    beside: by what the logits do not explain of the features. offered: the clusters that may be parts of the data.
    """

    within_class: bool
    count: int
    beside: bool = False
    offered: frozenset[int] | None = None

    def class_of(self, cluster: float) -> int | None:
        """The class whose samples a cluster parts; None for a cluster over all classes."""
        return int(cluster) // self.count if self.within_class else None


def features_pass(subject: Subject) -> SamplePass:
    """What the model's last layer is given, of every test image."""

    def compute(blocks: Sequence[int]) -> Iterator[Rows]:
        extractor = ClassifierExtractor(subject.model, subject.precision)
        for batch in subject.loader.batches(made.order(blocks)):
            found = extractor.extract(to_float(batch.x)).features
            assert found is not None
            yield {"features": found.flatten(1).cpu()}

    made = SamplePass("slices-features", torch.arange(len(subject.split)), subject.batch_size, compute)
    return made


def features_of(subject: Subject) -> tuple[str, Tensor] | None:
    """What the model's last layer is given, (N, D) on the CPU, or its logits where that is out of reach; which of them.

    None for predictions without scores.
    """
    try:
        own = subject.rows(features_pass(subject)).get("features")
    except HoldfastError:  # a program that hides its layers, or no model at all
        own = None
    if own is not None and bool(own.isfinite().all()):
        return "features", own
    return ("logits", subject.predictions.logits) if subject.has_scores else None


def beside_decision(points: Tensor, logits: Tensor, fitted: Tensor) -> Tensor:
    """(N, D) points without what logits (N, K) and their squares explain of them. fitted: (N,) flags, samples to learn
    that from.

    >>> logits = torch.arange(40.0)[:, None] * torch.tensor([1.0, -1.0])
    >>> beside_decision(3 * logits + 1, logits, torch.ones(40, dtype=torch.bool)).abs().max() < 1e-3
    tensor(True)
    """
    known = logits.double().log_softmax(1)
    known = known - known[fitted].mean(0)
    _, scale, turn = torch.linalg.svd(known[fitted], full_matrices=False)
    kept = min(EXPLAINED, int(fitted.sum()) // EXPLAINED, int((scale > 1e-6 * scale[0]).sum()))
    main = known @ turn[:kept].T / scale[:kept].clamp_min(1e-12)
    terms = torch.cat([torch.ones(len(main), 1, dtype=main.dtype), main, main.square()], 1)
    weights: Tensor = torch.linalg.lstsq(terms[fitted], points[fitted].double(), driver="gelsd").solution
    return (points.double() - terms @ weights).float()


def cluster(
    features: Tensor, labels: Tensor, first: Tensor, *, seed: int, logits: Tensor | None = None
) -> dict[Clustering, Tensor]:
    """(N,) cluster of every sample for each clustering, fitted on the positions ``first`` alone.

    Clusters within class y are numbered from y times their count; -1 is for samples of a class that is too small.
    logits: of the model; without them every cluster is offered.
    """
    from sklearn.cluster import KMeans  # slow to import
    from sklearn.decomposition import PCA

    points, state = features.float(), derive(seed, "slices/clusters") % 2**32
    here = torch.zeros(len(labels), dtype=torch.bool)
    here[first] = True
    if min(points.shape[1], len(first)) > DIMENSIONS:
        made = PCA(DIMENSIONS, svd_solver="randomized", random_state=state).fit(points[first].numpy())
        points = torch.from_numpy(made.transform(points.numpy()))
    ids: dict[tuple[bool, int, bool], Tensor] = {}
    offered: dict[tuple[bool, int, bool], set[int]] = defaultdict(set)
    for label in (None, *sorted(set(labels.tolist()))):
        inside = torch.ones_like(here) if label is None else labels == label
        fitted = here[inside]
        if int(fitted.sum()) < 2 * LEAST:
            continue
        plain = points[inside]
        spaces = (
            {False: plain} if logits is None else {False: plain, True: beside_decision(plain, logits[inside], fitted)}
        )
        for (beside, own), count in product(spaces.items(), COUNTS):
            shown = own[fitted].numpy()
            if len(shown) < count * LEAST or len(np.unique(shown, axis=0)) < COUNTS[-1]:
                continue
            made = KMeans(count, max_iter=MOST_STEPS, random_state=state).fit(shown)
            parts = torch.from_numpy(made.predict(own.numpy())).long()
            key = label is not None, count, beside
            ids.setdefault(key, torch.full((len(labels),), -1))[inside] = parts + count * (label or 0)
            real = (k for k in range(count) if beside or distance(own, parts == k, fitted) >= APART)
            offered[key] |= {k + count * (label or 0) for k in real}
    return {Clustering(*key, None if logits is None else frozenset(offered[key])): own for key, own in ids.items()}


def distance(points: Tensor, inside: Tensor, fitted: Tensor) -> float:
    """How far the samples inside stand apart from the others, in standard deviations, where they were not fitted.

    >>> bell = torch.randn(4000, 2, generator=torch.Generator().manual_seed(0))
    >>> right, fitted = bell[:, 0] > 0, torch.arange(4000) < 2000
    >>> distance(bell, right, fitted) < 3, distance(bell + 9 * right[:, None], right, fitted) > APART
    (True, True)
    """
    parts = [points[inside & fitted], points[~inside & fitted]]
    if min(map(len, parts)) < 2:
        return 0.0
    line = parts[0].mean(0) - parts[1].mean(0)
    own, other = (points[which & ~fitted] @ line for which in (inside, ~inside))
    if min(len(own), len(other)) < 2:
        return 0.0
    spread = ((own.var() + other.var()) / 2).sqrt()
    return float((own.mean() - other.mean()) / spread.clamp_min(1e-12))


def telling(
    inside: Tensor, properties: Mapping[str, Tensor], names: Mapping[str, Sequence[str]]
) -> tuple[str, dict[str, Any]] | None:
    """The property in which samples inside, (N,) flags, differ most from the others, in words and in numbers.

    Numbers are compared by the Kolmogorov-Smirnov distance, kinds by the difference of shares; None where no property
    tells them apart. names: of the kinds, by property.
    """
    best: tuple[str, dict[str, Any]] | None = None
    for name, values in properties.items():
        known = ~values.isnan() if values.is_floating_point() else values >= 0
        own, other = values[inside & known], values[~inside & known]
        if not len(own) or not len(other):
            continue
        if values.is_floating_point():
            at = torch.cat([own, other])
            below = [torch.searchsorted(v.sort().values, at, right=True) / len(v) for v in (own, other)]
            apart = below[0] - below[1]
            far = apart[apart.abs().argmax()]
            words = f"{'low' if far > 0 else 'high'} {name}"
            numbers: dict[str, Any] = {"kind": None, "inside": float(own.median()), "outside": float(other.median())}
        else:
            most = int(values.max()) + 1
            shares = [torch.bincount(v, minlength=most) / len(v) for v in (own, other)]
            apart = shares[0] - shares[1]
            kind = int((apart.abs() + 1e-6 * (apart > 0)).argmax())  # rather what it is than what it is not
            far, known_as = apart[kind], names.get(name, ())
            words = f"{name} {'' if far > 0 else 'not '}{known_as[kind] if kind < len(known_as) else kind}"
            numbers = {"kind": words.removeprefix(f"{name} ").removeprefix("not ")}
            numbers |= {"inside": float(shares[0][kind]), "outside": float(shares[1][kind])}
        distance = abs(float(far))
        enough = max(TELLING, CRITICAL * (1 / len(own) + 1 / len(other)) ** 0.5)
        if distance >= enough and (best is None or distance > best[1]["distance"]):
            best = words, {"property": name, **numbers, "distance": distance}
    return best
