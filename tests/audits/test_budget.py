"""A budget becomes numbers of images, by trials whose time is part of it."""

from __future__ import annotations

import pytest

from holdfast.audits.checks.attacks import Attacks
from holdfast.audits.measuring import LEAST, Clock, fit_images
from holdfast.parts import CHECKS


class Check:
    """Takes a fixed time and some an image; a first run is slower. Remembers what it was asked."""

    def __init__(self, fixed: float, each: float, warm_up: float = 0.0) -> None:
        self.fixed, self.each, self.warm_up = fixed, each, warm_up
        self.ran: list[int] = []
        self.took = 0.0

    def cost(self, images: int) -> float:
        return self.fixed + self.each * images

    def __call__(self, images: int) -> tuple[int, float]:
        seconds = self.cost(images) + (0 if self.ran else self.warm_up)
        self.ran.append(images)
        self.took += seconds
        return images, seconds


@pytest.mark.parametrize("warm_up", [0.0, 1.0])
@pytest.mark.parametrize("fixed", [0.0, 0.5, 3.0])
@pytest.mark.parametrize("each", [0.0001, 0.01, 0.1, 1.0])
def test_the_share_holds_wherever_a_few_images_fit_in_it(fixed: float, each: float, warm_up: float) -> None:
    share, wanted = 60.0, 1000
    check = Check(fixed, each, warm_up)
    found = fit_images(check, share=share, wanted=wanted)
    assert found.images == found.outcome == check.ran[-1]
    assert check.took <= share
    possible = min(wanted, (share - check.cost(LEAST)) / each)
    assert found.images >= 0.4 * possible  # most of the time goes into the result


def test_a_trial_is_the_result_where_nothing_larger_fits() -> None:
    check = Check(0.0, 1.0)
    found = fit_images(check, share=17.0, wanted=1000)
    assert (found.images, check.ran) == (LEAST, [LEAST])
    assert str(found.note(1000)) == "16 images instead of 1000, to stay within the budget (16 took 16.0 s)"


def test_what_is_quick_is_measured_in_full_and_what_is_reserved_is_kept_free() -> None:
    check = Check(0.0, 0.001)
    assert fit_images(check, share=60.0, wanted=1000).images == 1000
    assert check.ran == [LEAST, 1000]
    slow = fit_images(Check(0.0, 0.1), share=60.0, wanted=1000).images
    assert fit_images(Check(0.0, 0.1), share=60.0, wanted=1000, reserved=30.0).images < 0.6 * slow


def test_nothing_is_repeated_that_does_not_apply() -> None:
    check = Check(0.0, 0.001)
    found = fit_images(check, share=60.0, wanted=1000, useful=lambda images: False)
    assert check.ran == [LEAST]
    assert found.images == 1000  # nothing was given up for want of time


def test_what_is_left_is_shared_among_those_to_come() -> None:
    now = [0.0]
    clock = Clock(100.0, "cpu", now=lambda: now[0])
    still = ["corruptions", "attacks", "ood"]
    total = sum(CHECKS[name].share for name in still)
    assert clock.share("corruptions", still) == pytest.approx(100 * CHECKS["corruptions"].share / total)
    now[0] = 40.0
    assert clock.share("ood", ["accuracy", "ood"]) == pytest.approx(60.0)
    now[0] = 110.0
    assert clock.share("attacks", still) == 0.0


def test_a_check_that_cannot_even_begin_says_what_it_would_take() -> None:
    clock = Clock(100.0, "cpu", now=lambda: 0.0)
    clock.forward = 1e-4
    assert clock.hopeless(Attacks().passes("cpu"), 30.0) == ""
    clock.forward = 0.1
    takes = LEAST * 0.1 * Attacks().passes("cpu")
    says = f"16 images would take about {takes:.0f} s, and its share of the budget is 30 s"
    assert clock.hopeless(Attacks().passes("cpu"), 30.0) == says
