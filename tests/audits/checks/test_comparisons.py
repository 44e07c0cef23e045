"""Which check fails is told by which attack finds less than it must, on errors made by hand."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from holdfast.audits.checks.attacks import attack_bench as bench
from holdfast.audits.checks.attacks import trust
from holdfast.audits.checks.attacks.attack_plans import BUDGETS
from holdfast.audits.checks.attacks.trust import AVERAGED, NONE, QUERIES, TRANSFER, WHITE, Key, comparisons
from holdfast.audits.subject import Subject
from holdfast.metrics import sign_test
from tests.conftest import make_data

RADII = (0.1, 0.2)
GRADIENT = ("fgsm", "pgd-10", "apgd-ce", "apgd-dlr")
N = 40


def some(count: int) -> Tensor:
    return torch.arange(N) < count


def made(**counts: int) -> dict[Key, Tensor]:
    """Errors by attack, a name with ``_far`` being the larger radius alone; the first images go wrong first."""
    usual = {"clean": 0, **dict.fromkeys(GRADIENT, 20), "averaged": 5, "square": 20, "noise": 5, "black": 12}

    def of(name: str, radius: float) -> Tensor:
        far = counts.get(f"{name}_far") if radius == RADII[1] else None
        return some(counts.get(name, usual[name]) if far is None else far)

    wrong: dict[Key, Tensor] = {("clean", NONE, 0.0): of("clean", 0.0)}
    for radius in RADII:
        wrong |= {(name, WHITE, radius): of(name, radius) for name in GRADIENT}
        wrong["square", QUERIES, radius] = of("square", radius)
        wrong[AVERAGED, WHITE, radius] = of("averaged", radius)
        wrong |= {("noise", NONE, radius): of("noise", radius), ("fgsm", TRANSFER, radius): of("black", radius)}
    return wrong


GONE = dict.fromkeys(GRADIENT, 0)


@pytest.mark.parametrize(
    ("counts", "long", "failing"),
    [
        ({}, 20, set()),
        ({"clean": 40}, 20, {"radius-growth"}),
        ({"pgd-10_far": 0}, 20, {"radius-growth", "steps-growth"}),
        ({"apgd-ce_far": 0}, 20, {"radius-growth"}),
        ({"apgd-dlr_far": 0}, 20, set()),
        ({"fgsm": 40}, 20, {"steps-growth"}),
        ({}, 0, {"steps-growth"}),
        ({}, 40, set()),
        ({"black": 40}, 20, {"white-over-transfer"}),
        ({"noise": 20, "black": 0}, 20, {"transfer-over-noise"}),
        ({"noise": 20}, 20, set()),  # eight images may be chance
        ({"noise": 40, "black": 40}, 20, {"white-over-transfer", "white-over-noise"}),
        ({"square": 40}, 20, {"gradients-over-search"}),
        ({"averaged": 40}, 20, {"plain-over-averaged"}),
        (GONE, 0, {"white-over-transfer", "gradients-over-search"}),
    ],
)
def test_the_check_that_fails_is_the_one_that_was_broken(counts: dict[str, int], long: int, failing: set[str]) -> None:
    checks = comparisons(made(**counts), RADII, "linf", {RADII[1]: some(long)})
    assert {c.name for c in checks if c.passed is False} == failing
    assert all(c.passed is not None for c in checks)


def test_errors_that_are_level_are_not_said_to_grow() -> None:
    checks = {c.name: c for c in comparisons(dict.fromkeys(made(), some(11)), RADII, "linf", {})}
    assert checks["radius-growth"].says.startswith("error does not fall as the radius grows: holds; closest at ")
    assert checks["steps-growth"].says.startswith("error does not fall with more steps: holds; closest at ")


def test_without_transfer_two_checks_have_nothing_to_compare() -> None:
    wrong = {key: value for key, value in made().items() if key[1] != TRANSFER}
    checks = comparisons(wrong, RADII, "linf", {})
    assert {c.name for c in checks if c.passed is None} == {"white-over-transfer", "transfer-over-noise"}


def test_a_search_of_the_first_images_is_compared_on_those() -> None:
    wrong = made()
    for radius in RADII:
        wrong["square", QUERIES, radius] = some(20)[:30]
    search = comparisons(wrong, RADII, "linf", {})[-1]
    assert (search.name, search.passed, search.n) == ("gradients-over-search", True, 30)


def test_of_many_comparisons_each_may_fail_less_often() -> None:
    """Ten losses to none have p = 2^-10 < 1e-3: too many for one comparison, not for the worst of several."""
    pair = (some(0), some(10))
    assert sign_test(0, 10, alternative="less") == pytest.approx(2**-10)
    assert trust.at_least("x", {"a": pair}, "s").passed is False
    assert trust.at_least("x", {"a": pair, "b": (some(5), some(5))}, "s").passed is True


def test_images_of_a_search_are_joined_up_to_the_limit_and_each_once(monkeypatch: pytest.MonkeyPatch) -> None:
    data = make_data(6, 3, test=23)
    monkeypatch.setattr(bench, "TOGETHER", 5 * 64)
    for batch, sizes in ((2, [4] * 5 + [3]), (5, [5] * 4 + [3]), (6, [6] * 3 + [5])):
        own = bench.AttackBench(Subject(nn.Identity(), data, torch.device("cpu"), batch), 23, BUDGETS["cpu"])
        parts = [bench._joined(own.block(number)) for number in range(len(sizes))]
        assert [len(y) for _, y in parts] == sizes, "no more than five images, but never less than a batch"
        assert torch.equal(torch.cat([y for _, y in parts]), data.test.labels)
        assert torch.equal(torch.cat([x for x, _ in parts]), data.test.read(torch.arange(23)) / 255)
