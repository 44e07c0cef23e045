"""How far one model's scores lead another's in telling foreign images from test images: the same ones for both."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import torch
from torch import Tensor

from holdfast.audits.checks.ranks import RANKS, Ranked, read_ranks
from holdfast.metrics import paired_auroc
from holdfast.types import Finding

Scores = tuple[Tensor, Tensor]
"""Of test images and of foreign ones."""


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
    """``lead`` in AUROC of every score that both have, over all foreign images and each set of them.

    there: (N,) position of each of our test images in the other's split, -1 where it has none. Sets that only one has
    are left out, and so is the lead over all foreign images then.
    """
    for score, own in mine.items():
        other = theirs.get(score)
        if other is None:
            continue
        test = _shared(own.test, torch.where(there >= 0, other.test[there.clamp_min(0)], torch.nan))
        sets = {key: _shared(own.foreign[key], other.foreign[key]) for key in own.foreign if key in other.foreign}
        for (name, _), foreign in sets.items():
            yield from _lead(test, foreign, {**named, "score": score, "foreign": name}, level)
        if sets and len(sets) == len(own.foreign) == len(other.foreign):
            first, second = zip(*sets.values(), strict=True)
            yield from _lead(test, (torch.cat(first), torch.cat(second)), {**named, "score": score}, level)


def _shared(first: Tensor, second: Tensor) -> tuple[Tensor, Tensor]:
    """What both say of the images that both saw."""
    both = ~(first.isnan() | second.isnan())
    return first[both], second[both]


def _lead(
    test: tuple[Tensor, Tensor], foreign: tuple[Tensor, Tensor], where: Mapping[str, str], level: float
) -> Iterator[Finding]:
    if min(len(test[0]), len(foreign[0])) < 2:
        return
    pair = paired_auroc((test[0], foreign[0]), (test[1], foreign[1]), level=level)
    told = {"level": level}
    yield Finding("against", "lead", pair.lead, pair.n, pair.low, pair.high, where, told, {"of": "auroc"})
    yield Finding("against", "delong-p", pair.p, pair.n, where=where, evidence={"reason": "a p-value"})
