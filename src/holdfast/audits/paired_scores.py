"""How far one model's scores lead another's in telling OOD images from test images: the same ones for both."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import torch
from torch import Tensor

from holdfast.audits.checks.ranks import RANKS, Ranked, read_ranks
from holdfast.metrics import paired_auroc
from holdfast.types import Finding

MEASURE = {"measure": "ood_auroc"}
Scores = tuple[Tensor, Tensor]
"""Of test images and of OOD ones."""


def rankings(findings: Sequence[Finding], size: int) -> dict[str, Ranked]:
    """By score, from findings on a test split of some size."""
    return {f.where["score"]: read_ranks(f.evidence[RANKS], size) for f in findings if RANKS in f.evidence}


def auroc_leads(
    mine: Mapping[str, Ranked],
    theirs: Mapping[str, Ranked],
    there: Tensor,
    named: Mapping[str, str],
    *,
    level: float,
) -> Iterator[Finding]:
    """``lead`` in AUROC of every score that both have, over all OOD images and each set of them.

    there: (N,) position of each of our test images in the other's split, -1 where it has none. Sets that only one has
    are left out, and so is the lead over all OOD images then.
    """
    for score, own in mine.items():
        other = theirs.get(score)
        if other is None:
            continue
        test = _shared(own.test, torch.where(there >= 0, other.test[there.clamp_min(0)], torch.nan))
        sets = {key: _shared(own.ood[key], other.ood[key]) for key in own.ood if key in other.ood}
        for (name, _), images in sets.items():
            yield from _lead(test, images, {**named, **MEASURE, "score": score, "ood": name}, level)
        if sets and len(sets) == len(own.ood) == len(other.ood):
            first, second = zip(*sets.values(), strict=True)
            yield from _lead(test, (torch.cat(first), torch.cat(second)), {**named, **MEASURE, "score": score}, level)


def _shared(first: Tensor, second: Tensor) -> tuple[Tensor, Tensor]:
    """What both say of the images that both saw."""
    both = ~(first.isnan() | second.isnan())
    return first[both], second[both]


def _lead(
    test: tuple[Tensor, Tensor], ood: tuple[Tensor, Tensor], where: Mapping[str, str], level: float
) -> Iterator[Finding]:
    if min(len(test[0]), len(ood[0])) < 2:
        return
    pair = paired_auroc((test[0], ood[0]), (test[1], ood[1]), level=level)
    told = {"level": level}
    yield Finding("against", "lead", pair.lead, pair.n, pair.low, pair.high, where, told)
    yield Finding("against", "delong_p", pair.p, pair.n, where=where, evidence={"reason": "a p-value"})
