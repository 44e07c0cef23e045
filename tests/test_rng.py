"""Samples that are chosen without a draw."""

from __future__ import annotations

from holdfast.rng import evenly


def test_positions_reach_from_the_first_to_the_last_of_any_number() -> None:
    for count in (1, 2, 63, 64, 65, 50_000, 2**24 + 5, 20_000_004):
        found = evenly(count, 64)
        assert (int(found[0]), int(found[-1]), len(found)) == (0, count - 1, min(count, 64)), count
        assert bool((found.diff() > 0).all())
