"""A subject whose predictions were made elsewhere: enough for the checks that need no model."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Final

import torch
from torch import nn

from holdfast.audits.alignment import PredictionTable
from holdfast.audits.checking import CHECKS
from holdfast.audits.subject import Subject
from holdfast.data.splits import ArraySplit, Dataset
from holdfast.types import Finding

WITHOUT_DATA: Final = ("accuracy", "groups")
WITH_DATA: Final = (*WITHOUT_DATA, "slices")
NO_MODEL: Final = "there are predictions alone, and no model to ask"
PROBABILITIES: Final = ("nll", "brier", "ece", "ece_adaptive")
NO_SCORES: Final = "the file has predictions without scores"


@dataclass(frozen=True, eq=False)
class Told:
    """not_applicable: check -> why. fix: a finding without what the file cannot know."""

    subject: Subject
    not_applicable: dict[str, str]
    fix: Callable[[Finding], Finding]


def told_subject(
    read: PredictionTable, data: Dataset | None, device: torch.device, *, seed: int, batch_size: int, workers: int
) -> Told:
    """A subject for a table of predictions; without data there are no pictures, and none is shown."""
    seen = read.predictions
    if data is not None and data.test is not None:
        known = replace(data, test=data.test.subset(read.positions))
    else:
        # One pixel an image: the checks below ask for pictures, and `fix` takes them out again.
        blank = torch.zeros(len(seen.labels), 1, 1, 1, dtype=torch.uint8)
        test = ArraySplit(blank, seen.labels, seen.groups, origin="row")
        empty = test.subset(torch.arange(0))
        known = Dataset("predictions", read.classes, train=empty, test=test, group_names=read.group_names)
    subject = Subject(nn.Identity(), known, device, batch_size=batch_size, seed=seed, workers=workers)
    subject.__dict__["predictions"] = seen
    able = WITHOUT_DATA if data is None else WITH_DATA
    blocked = {name: NO_MODEL for name in CHECKS if name not in able}
    if data is None:
        blocked["slices"] = "there are no images; give the data they belong to with --data"

    def fix(found: Finding) -> Finding:
        if not read.scores and found.name in PROBABILITIES:
            return Finding(found.check, found.name, None, 0, where=found.where, evidence={"reason": NO_SCORES})
        if found.evidence.get("pictures"):
            kept = [] if data is None else [dict(p) for p in found.evidence["pictures"]]
            if not read.scores:
                kept = [{**p, "confidence": None} for p in kept]
            return replace(found, evidence={**found.evidence, "pictures": kept})
        return found

    return Told(subject, blocked, fix)
