"""A budget becomes numbers of images."""

from __future__ import annotations

from holdfast.experiment.audit.budget import Clock, passes


def test_a_budget_gives_each_front_the_images_its_time_allows() -> None:
    clock = Clock(100.0, "cpu", now=lambda: 0.0)
    clock.forward = 1e-3
    chosen, text = clock.settings("corruptions", ["corruptions", "attacks"], 5000)
    share = 100.0 * 0.25 / 0.75
    assert chosen == {"images": int(share / (1e-3 * passes("corruptions", "cpu")))}
    assert text == f"corruptions: {chosen['images']} images instead of 1000, to stay within the budget"
    clock.forward = 1e-9
    assert clock.settings("corruptions", ["corruptions"], 5000) == ({}, "")
    clock.forward = 10.0
    assert clock.settings("attacks", ["attacks"], 5000)[0] == {"images": 16, "black_box": False}
