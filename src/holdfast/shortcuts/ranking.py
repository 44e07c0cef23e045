"""The order of the training samples, and when not to believe it."""

from __future__ import annotations

import torch
from torch import Tensor

from holdfast.data import Dataset
from holdfast.data.splits import aligned_groups, sides
from holdfast.detect.evaluation import evaluate_scores
from holdfast.errors import require
from holdfast.rng import derive
from holdfast.settings import TrainSettings
from holdfast.shortcuts.mixture import Share, estimate_share
from holdfast.shortcuts.result import Shortcuts
from holdfast.shortcuts.watch import Sighting


def rank(
    settings: TrainSettings, data: Dataset, sightings: tuple[Sighting, ...], *, resamples: int, seed: int
) -> Shortcuts:
    """Samples by the mean surprise of the biased models; group labels only judge the order."""
    score = torch.stack([s.surprise for s in sightings]).mean(0)
    require(bool(score.isfinite().all()), "the biased model's outputs are not finite; try a lower --lr")
    difficulties = [s.difficulty for s in sightings if s.difficulty is not None]
    share = estimate_share(score, resamples=resamples, seed=derive(seed, "shortcuts/share"))
    taken_for = torch.stack([s.probabilities for s in sightings]).mean(0).argmax(1)
    labels, groups = data.train.labels, data.train.groups
    judged, base_rate = None, None
    known = groups >= 0
    conflicting = sides(labels, groups, aligned_groups(labels, groups, data.num_classes))["conflicting"]
    if bool(conflicting.any()) and not bool(conflicting[known].all()):
        drawn = derive(seed, "shortcuts/precision")
        judged = evaluate_scores(score[known], conflicting[known], resamples=resamples, seed=drawn).ranking["ap"]
        base_rate = float(conflicting[known].double().mean())
    return Shortcuts(
        data=data,
        settings=settings,
        score=score,
        order=score.argsort(descending=True, stable=True),
        wrong=torch.stack([s.wrong for s in sightings]).mean(0),
        difficulty=torch.stack(difficulties).mean(0) if difficulties else None,
        share=share,
        taken_for=taken_for,
        sightings=sightings,
        judged=judged,
        base_rate=base_rate,
        notes=_notes(sightings, labels, share),
    )


def _notes(sightings: tuple[Sighting, ...], labels: Tensor, share: Share) -> tuple[str, ...]:
    """When not to believe the ranking."""
    notes = []
    right = float(torch.stack([s.probabilities.argmax(1) == labels for s in sightings]).double().mean())
    chance = float(torch.bincount(labels).max()) / len(labels)
    if right < chance + 0.5 * (1 - chance):
        notes.append(
            f"the biased models get only {100 * right:.0f} % of the training samples right: there may be no simple "
            "shortcut, or they need more --epochs or another --lr"
        )
    if share.value > 0.5:
        notes.append(
            f"{100 * share.value:.0f} % of the samples do not fit what the biased models learned: that is no shortcut "
            "with exceptions; read the ranking as plain difficulty"
        )
    if right > 0.999 and share.value < 2 / len(labels):
        notes.append(
            "the biased models get every training sample right: nothing contradicts what they learned; lower --epochs, "
            "or there is no exception to find"
        )
    return tuple(notes)
