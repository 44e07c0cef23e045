"""What a repair is fitted on (the validation split, or a part of training; never a test split), and how the settings of
its new last layer are chosen there: every candidate is judged on held-out images that it was not fitted on.

Open this file to change how C of DFR, or γ and λ of AFR, are chosen.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, replace
from itertools import product
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from holdfast.data import Dataset, load
from holdfast.data.splits import Split, hold_out
from holdfast.detect.features import ClassifierExtractor, extract
from holdfast.errors import require
from holdfast.models import ModelCard
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
from holdfast.settings import handed_over, read_environment
from holdfast.settings.command_settings import RepairSettings
from holdfast.train.folder import read_settings
from holdfast.train.run_result import is_own_data, terms_of_run
from holdfast.types import Note


@dataclass(frozen=True, eq=False)
class HeldOutImages:
    """The images to fit on. split: which part of the data they are, in words. seen: whether the run was trained on
    them; None where that is not known."""

    images: Split
    split: str
    seen: bool | None
    notes: tuple[Note, ...]


@dataclass(frozen=True, eq=False)
class StoredFeatures:
    """features (N, D), logits (N, K), labels and groups (N,), on the CPU."""

    features: Tensor
    logits: Tensor
    labels: Tensor
    groups: Tensor


def open_data(run: Path, data: str | Path | Dataset | None, card: ModelCard, own: RepairSettings) -> Dataset:
    """The data, cut into splits as the run cut it, at the size that its network takes."""
    if isinstance(data, Dataset):
        found = data
    else:
        source = _source(run, data)
        given: dict[str, Any] = {"conflict": own.conflict, "val": own.val, "data_seed": own.data_seed}
        terms = terms_of_run(run, source)
        used = {} if terms is None else terms.reading()
        used |= {name: value for name, value in given.items() if value is not None}
        size = read_settings(run / "run.yaml").data.image_size if is_own_data(run, source) else _side(card)
        found = load(source, root=own.root, confine=own.confine, image_size=size, training=False, **used)
    same = found.classes == card.classes
    require(
        same, f"{found.name} has the classes {_brief(found.classes)}, the model {_brief(card.classes)}; give its data"
    )
    shape = (card.in_channels, *(found.shape[1:] if card.image_size is None else _sides(card)))
    fits = f"{found.name} has images of {found.shape} (C, H, W), and the model takes {shape}"
    require(found.shape == shape, f"{fits}; give data of that shape")
    return found


def source_name(run: Path, data: str | Path | Dataset | None) -> str | Path | Dataset:
    """What to audit on: the data that was given, or the run's own."""
    return data if isinstance(data, Dataset) else _source(run, data)


def choose_held_out(run: Path, data: Dataset, given: str | Path | Dataset | None, own: RepairSettings) -> HeldOutImages:
    """The validation split, or a share of every class of training by seed."""
    ours = not isinstance(given, Dataset) and is_own_data(run, _source(run, given))
    if data.val is not None and len(data.val):
        return HeldOutImages(data.val, f"the validation split of {data.name}", False if ours else None, ())
    none = f"{data.name} has neither a validation nor a training split to fit on, and nothing is fitted on a test split"
    require(len(data.train) > 0, f"{none}; give data with one of them")
    _, part = hold_out(data.train, own.held_out, derive(own.seed, "repair/held-out"))
    share = f"{own.held_out:.0%} of every class of the training split of {data.name} (seed {own.seed})"
    notes = []
    if ours:
        text = f"{data.name} has no validation split, so the repair is fitted on images that {run} was trained on"
        remedy = "a run trained with --val 0.2 is repaired on images that are new to it, which does more"
        notes.append(Note("fitted-on-training-images", text, remedy, "warning"))
    return HeldOutImages(part, share, True if ours else None, tuple(notes))


def store_features(model: nn.Module, images: Split, head: LinearHead, own: RepairSettings) -> StoredFeatures:
    """Features and logits in one pass. Refuses a network whose head does not make its logits of them."""
    found = extract(ClassifierExtractor(model), images, batch_size=own.batch_size, workers=own.workers)
    assert found.features is not None
    assert found.logits is not None
    gap = float((head(found.features) - found.logits).abs().max())
    size = float(found.logits.abs().max())
    linear = gap <= 1e-3 * max(1.0, size)
    kind = "its logits are not a linear map of what its last layer is given"
    require(linear, f"the last layer of this network cannot be replaced: {kind} (they differ by {gap:.3g})")
    return StoredFeatures(found.features.double(), found.logits.double(), images.labels, images.groups)


def subset(stored: StoredFeatures, index: Tensor) -> StoredFeatures:
    return replace(stored, **{name: value[index] for name, value in vars(stored).items()})


def _source(run: Path, data: str | Path | None) -> str | Path:
    if data is not None:
        return data
    recorded = read_environment(run)
    own = handed_over(recorded, "data")
    require(own is None, f"{run} was trained on a set in memory, {own}; give it with data")
    name, path = read_settings(run / "run.yaml").data.name, recorded.get("data_path", "")
    return name if os.path.exists(name) or not path else path


def _side(card: ModelCard) -> int | None:
    if card.image_size is None:
        return None
    height, width = _sides(card)
    return height if height == width else None


def _sides(card: ModelCard) -> tuple[int, int]:
    size = card.image_size
    assert size is not None
    return (size, size) if isinstance(size, int) else size


def _brief(names: tuple[str, ...]) -> str:
    return ", ".join(names[:5]) + (f", ... ({len(names)})" if len(names) > 5 else "")


def known_groups(stored: StoredFeatures) -> Tensor:
    """Positions of the samples whose group is known."""
    return (stored.groups >= 0).nonzero().flatten()


def group_count(stored: StoredFeatures) -> int:
    return len(torch.unique(stored.groups[stored.groups >= 0]))


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
