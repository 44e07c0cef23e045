"""Fit last layers with every candidate setting and keep the best, judged on held-out images it was not fitted on.

Open this file to change how C of DFR, or γ and λ of AFR, are chosen.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import product

import torch
from torch import Tensor

from holdfast.repairs.held_out import StoredFeatures, group_count, known_groups, subset
from holdfast.repairs.last_layer import (
    TOLERANCE,
    LinearHead,
    afr,
    cells_of,
    cross_fitted,
    dfr,
    group_scores,
)
from holdfast.rng import derive
from holdfast.settings.repair_settings import RepairSettings
from holdfast.types import Note

SMALL = 5
"""Held-out images of a cell below which subsamples, or the accuracy of the cell, would say next to nothing."""
ROUGH = 1e-6
"""The tolerance of layers that are compared; the one that is kept is fitted to TOLERANCE."""


@dataclass(frozen=True, eq=False)
class FittedLayer:
    """A new last layer. chosen: its settings by name. logits: (N, K) of each held-out image, by a layer that was fitted
    without it."""

    head: LinearHead
    chosen: Mapping[str, float]
    logits: Tensor
    notes: tuple[Note, ...] = ()


def fit_layer(by: str, stored: StoredFeatures, first: LinearHead, own: RepairSettings) -> FittedLayer:
    """The last layer of a repair. by: "dfr", "afr" or "none". first: the old layer."""
    if by == "none":
        return FittedLayer(first, {}, stored.logits)
    return _dfr(stored, len(first.bias), own) if by == "dfr" else _afr(stored, first, own)


def _dfr(stored: StoredFeatures, classes: int, own: RepairSettings) -> FittedLayer:
    index = known_groups(stored)
    grouped = subset(stored, index)
    cells = cells_of(grouped.labels, grouped.groups)
    balance = own.balance
    if balance == "auto":
        balance = "weights" if int(torch.bincount(cells).min()) < SMALL else "subsample"
    generator = torch.Generator().manual_seed(derive(own.seed, "repair"))

    def fit(index: Tensor, strengths: tuple[float, ...], repeats: int, tolerance: float) -> list[LinearHead]:
        part = subset(grouped, index)
        return dfr(
            part.features, part.labels, part.groups, num_classes=classes, strengths=strengths, penalty=own.penalty,
            balance=balance, repeats=repeats, tolerance=tolerance, generator=generator,
        )  # fmt: skip

    def crossed(strengths: tuple[float, ...], repeats: int) -> Tensor:
        again = torch.Generator().manual_seed(derive(own.seed, "repair/folds"))
        some = lambda index: fit(index, strengths, repeats, ROUGH)  # noqa: E731
        return cross_fitted(grouped.features, cells, some, count=own.folds, generator=again)

    few = min(3, own.repeats)  # while candidates are compared; the last layer itself is of all subsamples
    candidates = tuple(sorted(set(own.strengths)))
    tried = crossed(candidates, few)
    best = max(range(len(candidates)), key=lambda i: (*group_scores(tried[i], grouped.labels, cells), -candidates[i]))
    strength = candidates[best]
    (head,) = fit(torch.arange(len(cells)), (strength,), own.repeats, TOLERANCE)
    logits = head(stored.features)  # of those without a group, on which it was not fitted
    logits[index] = tried[best] if few == own.repeats else crossed((strength,), own.repeats)[0]
    return FittedLayer(head, {"C": strength}, logits, tuple(_about_cells(grouped, cells, classes, balance)))


def _afr(stored: StoredFeatures, first: LinearHead, own: RepairSettings) -> FittedLayer:
    """γ and λ are chosen by worst-group accuracy where groups are known, as in the paper; else over cells_of_errors."""
    candidates = sorted(product(set(own.gammas), set(own.pulls)), key=lambda pair: (pair[0], -pair[1]))
    cells = cells_of_errors(stored.labels, first(stored.features).argmax(1) != stored.labels)

    def fit(index: Tensor) -> list[LinearHead]:
        return afr(stored.features[index], stored.labels[index], first, candidates=candidates, tolerance=ROUGH)

    generator = torch.Generator().manual_seed(derive(own.seed, "repair/folds"))
    tried = cross_fitted(stored.features, cells, fit, count=own.folds, generator=generator)
    judged = torch.arange(len(cells))
    if group_count(stored) >= 2:
        judged = known_groups(stored)
        cells = cells_of(stored.labels[judged], stored.groups[judged])
    scores = [group_scores(own_logits[judged], stored.labels[judged], cells) for own_logits in tried]
    best = max(range(len(candidates)), key=lambda i: (*scores[i], -i))  # of equals the mildest
    gamma, pull = candidates[best]
    notes, least = [], int(torch.bincount(cells).min())
    if least < SMALL and len(candidates) > 1:
        kind = "pair of class and group" if group_count(stored) >= 2 else "part that the old layer gets right or wrong"
        text = f"γ and λ were chosen by few images: the smallest {kind} has {least} held-out ones"
        notes.append(Note("few-to-choose-by", text, "hold out more of the rare ones", "warning"))
    (head,) = afr(stored.features, stored.labels, first, candidates=[candidates[best]])
    return FittedLayer(head, {"gamma": gamma, "pull": pull}, tried[best], tuple(notes))


def cells_of_errors(labels: Tensor, wrong: Tensor) -> Tensor:
    """(N,) a cell for the samples of each class that the first model gets right, and for those that it gets wrong.

    They stand for groups that nobody knows: a model that uses a shortcut errs where the shortcut misleads. Wrong ones
    of all classes are one cell where a class has under SMALL of them.
    """
    classes = int(labels.max()) + 1
    each = torch.bincount(labels[wrong], minlength=classes)
    apart = bool((each[torch.bincount(labels, minlength=classes) > 0] >= SMALL).all())
    return cells_of(torch.where(wrong, classes + (labels if apart else 0), labels), torch.zeros_like(labels))


def _about_cells(stored: StoredFeatures, cells: Tensor, classes: int, balance: str) -> list[Note]:
    """What the held-out images lack for balanced subsamples."""
    notes, sizes = [], torch.bincount(cells)
    whole = classes * group_count(stored)
    missing, least = whole - len(sizes), int(sizes.min())
    if missing:
        text = f"{missing} of {whole} pairs of class and group have no held-out image: nothing is learned of them"
        notes.append(Note("empty-cells", text, "hold out more, or use --by afr", "warning"))
    if least < SMALL:
        how = "all are used, and every pair counts the same" if balance == "weights" else f"{least} of each are drawn"
        text = f"the smallest of {len(sizes)} pairs of class and group has {least} held-out images; {how}"
        notes.append(Note("small-cells", text, "collect more of the rare ones, or use --by afr"))
    return notes
