"""Where each check draws its line."""

from __future__ import annotations

import pytest
import torch
from scipy import stats

from holdfast.audits.checks.attacks import trust


@pytest.mark.parametrize("hits", range(90, 101))
def test_without_a_radius_an_error_of_99_percent_must_be_within_chance(hits: int) -> None:
    high = stats.binomtest(hits, 100).proportion_ci(method="wilson").high
    assert trust.reaches_all(torch.arange(100) < hits).passed is bool(high >= 0.99)


@pytest.mark.parametrize(("moved", "passed"), [(0, True), (2, True), (3, False)])
def test_one_image_in_a_hundred_may_differ_when_asked_again(moved: int, passed: bool) -> None:
    first = torch.tensor([0.0, 1.0]).repeat(200, 1)
    again = first.repeat(3, 1, 1)
    again[1, :moved, 0] += 0.01  # of a spread of 1, where 0.001 is allowed
    again[2, 100:, 0] += 0.0009
    check = trust.repeatable(first, again, precision="fp32")
    assert (check.passed, check.numbers["moved"], check.n) == (passed, moved, 200)
    assert trust.repeatable(first, again, precision="bf16").numbers["moved"] == 0


@pytest.mark.parametrize(("none", "plain", "passed"), [(5, 5, True), (6, 0, False), (0, 6, False)])
def test_one_image_in_twenty_may_have_no_gradient(none: int, plain: int, passed: bool) -> None:
    check = trust._present(none, plain, 100)
    assert check.passed is passed
    assert check.says == (
        f"gradients are there: the gradient of cross-entropy is exactly zero on {plain} of 100 images, "
        f"that of the log-odds on {none}"
    )
