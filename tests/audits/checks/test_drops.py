"""What attacks cost, with the interval of the pairs that they are."""

from __future__ import annotations

import pytest
import torch

from holdfast.audits.checks.attacks.trust import withstood
from holdfast.metrics import paired_difference
from holdfast.types import Finding

UNMOVED = Finding("attacks", "attack_error", 3 / 20, 20, 0.0, 0.4, {"attack": "clean", "access": "none"})


def strongest(radius: str, error: float) -> Finding:
    where = {"attack": "strongest", "access": "any", "radius": radius}
    return Finding("attacks", "attack_error", error, 20, 0.0, 1.0, where, {"norm": "linf"}, {"trusted": False})


def test_the_drop_is_that_of_the_pairs_themselves() -> None:
    """Flags of single images, whatever their order, against what the two errors alone give."""
    generator = torch.Generator().manual_seed(0)
    order = torch.randperm(20, generator=generator)
    clean = (torch.arange(20) >= 3)[order]
    attacked = (torch.arange(20) >= 14)[order]  # the three that are wrong as they are among them
    robust, found = withstood([UNMOVED, strongest("8/255", 14 / 20)])
    assert (robust.name, robust.value, robust.where) == ("robust_accuracy", pytest.approx(6 / 20), {"radius": "8/255"})
    pair = paired_difference(clean, attacked)
    assert (found.value, found.low, found.high, found.n) == pytest.approx((pair.lead, pair.low, pair.high, 20))
    assert found.value == pytest.approx(11 / 20)
    # Bonett and Price by hand: one more pair of each kind
    p = (11 + 1 - 1) / 22
    half = 1.959964 * ((13 / 22 - p**2) / 22) ** 0.5
    assert (found.low, found.high) == pytest.approx((p - half, p + half), abs=1e-6)


def test_every_radius_has_one_and_carries_whether_it_can_be_believed() -> None:
    other = Finding(
        "attacks", "attack_error", 0.5, 20, where={"attack": "fgsm", "access": "white-box", "radius": "2/255"}
    )
    found = [
        f
        for f in withstood([UNMOVED, other, strongest("2/255", 3 / 20), strongest("8/255", 1.0)])
        if f.name == "attack_drop"
    ]
    assert {f.where["radius"]: f.value for f in found} == pytest.approx({"2/255": 0.0, "8/255": 17 / 20})
    assert all(f.evidence["trusted"] is False and f.settings == {"norm": "linf"} for f in found)
    assert list(withstood([strongest("8/255", 0.5)])) == []
