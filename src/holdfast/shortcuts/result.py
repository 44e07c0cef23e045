"""What was found."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from holdfast.data import Dataset
from holdfast.metrics import Estimate
from holdfast.settings import TrainSettings
from holdfast.shortcuts.clusters import Cluster
from holdfast.shortcuts.mixture import Share
from holdfast.shortcuts.watch import Sighting
from holdfast.types import Finding


@dataclass(frozen=True, eq=False)
class Shortcuts:
    """What contradicts the shortcut, for the N samples of the training split of ``data``.

    score: (N,) in [0, 1]: 1 − p(y | x) of the biased models, the mean over seeds and epochs. order: (N,) positions, the
    highest score first. wrong: (N,) share of epochs and seeds in which a biased model predicts another class.
    difficulty: (N,) LfF's relative difficulty at the end, the mean over seeds; None for a model taken as it is.
    share: how many conflict. member: (N,) probability of being one of them. taken_for: (N,) what the biased models
    say at the end. clusters: the suspected ones by kind. judged: average precision against the group labels, base_rate:
    what a random order would get; None without. notes: what the user should hear. findings: all of it for a report.
    """

    data: Dataset
    settings: TrainSettings
    score: Tensor
    order: Tensor
    wrong: Tensor
    difficulty: Tensor | None
    share: Share
    taken_for: Tensor
    sightings: tuple[Sighting, ...]
    clusters: tuple[Cluster, ...] = ()
    judged: Estimate | None = None
    base_rate: float | None = None
    notes: tuple[str, ...] = ()
    findings: tuple[Finding, ...] = ()

    @property
    def member(self) -> Tensor:
        return self.share.member

    @property
    def average_precision(self) -> float | None:
        return None if self.judged is None else self.judged.value
