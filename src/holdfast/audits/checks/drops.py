"""Robust accuracy: what is left under the strongest attack, and how much is lost on the images it was tried on."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

import torch

from holdfast.metrics import paired_difference
from holdfast.types import Finding

STRONGEST: Final = {"attack": "strongest", "access": "any"}
UNMOVED: Final = {"attack": "clean", "access": "none"}


def withstood(findings: Sequence[Finding]) -> Iterator[Finding]:
    """``robust_accuracy`` and ``attack_drop`` at every radius, from errors under the strongest attack and without one.

    The images are the same, and what is wrong as it is counts as wrong under attack. So the pairs that differ are known
    from the two errors alone: as many as were lost, and none that was won.
    """
    own = [f for f in findings if f.check == "attacks" and f.name == "attack_error" and f.value is not None]
    unmoved = next((f for f in own if f.where == UNMOVED), None)
    for f in own:
        if unmoved is None or f.value is None or unmoved.value is None or not f.where.items() >= STRONGEST.items():
            continue
        image = torch.arange(f.n)
        before, after = (image < f.n - round(error * f.n) for error in (unmoved.value, f.value))
        lost = paired_difference(before, after)
        where = {"radius": f.where["radius"]}
        low, high = (None if end is None else 1 - end for end in (f.high, f.low))
        yield Finding("attacks", "robust_accuracy", 1 - f.value, f.n, low, high, where, f.settings, f.evidence)
        yield Finding("attacks", "attack_drop", lost.lead, f.n, lost.low, lost.high, where, f.settings, f.evidence)
