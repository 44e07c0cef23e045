"""What attacks cost: how much accuracy is lost on the images they were tried on."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

import torch

from holdfast.metrics import paired_difference
from holdfast.types import Finding

STRONGEST: Final = {"attack": "strongest", "access": "any"}
UNMOVED: Final = {"attack": "clean", "access": "none"}


def attack_drops(findings: Sequence[Finding]) -> Iterator[Finding]:
    """``drop`` at every radius, with a paired interval, from errors under the strongest attack and without one.

    The images are the same, and what is wrong as it is counts as wrong under attack. So the pairs that differ are known
    from the two errors alone: as many as were lost, and none that was won.
    """
    own = [f for f in findings if f.check == "attacks" and f.name == "error" and f.value is not None]
    unmoved = next((f for f in own if f.where == UNMOVED), None)
    for f in own:
        if unmoved is None or f.value is None or unmoved.value is None or not f.where.items() >= STRONGEST.items():
            continue
        image = torch.arange(f.n)
        before, after = (image < f.n - round(error * f.n) for error in (unmoved.value, f.value))
        lost = paired_difference(before, after)
        yield Finding("attacks", "drop", lost.lead, f.n, lost.low, lost.high, f.where, f.settings, f.evidence)
