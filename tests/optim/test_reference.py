"""Ten steps of every ascent with every descent against a second writing of the equations."""

from __future__ import annotations

from itertools import product
from typing import Any

import pytest
import torch
from torch.optim import SGD

from holdfast.optim import ASAM, SAM, FisherSAM
from tests.optim.problems import CLOSE, flat, make_batches, make_net, train, weights
from tests.optim.reference import DESCENTS, METRICS, OPERATORS, STEPS, VARIANTS, Reference, Sgd

FRIENDLY = [None, (0.0, 0.9), (0.5, 0.6), (0.5, 0.9), (1.0, 0.6), (1.0, 0.9)]
CASES = [
    *product(METRICS, FRIENDLY, ["momentum"], VARIANTS),
    *product(["sam"], [None, (0.5, 0.9), (1.0, 0.6)], DESCENTS.keys() - {"momentum"}, VARIANTS),
]


@pytest.mark.parametrize(("metric", "friendly", "descent", "variant"), sorted(CASES, key=str))
def test_follows_the_equations(metric: str, friendly: tuple[float, float] | None, descent: str, variant: str) -> None:
    kind, own, settings = DESCENTS[descent]
    model = make_net()
    ascent: dict[str, Any] = {"rho": 0.1, **METRICS[metric]}
    reference = Reference(model, own(**settings), OPERATORS[metric], rho=0.1)
    if descent == "adamw":
        reference.descend.decoupled = True  # type: ignore[attr-defined]
    if friendly:
        ascent |= {"friendly": True, "sigma": friendly[0], "lmbda": friendly[1]}
        reference.sigma, reference.lmbda = friendly
    optimizer = SAM(model.parameters(), kind, **ascent, **settings, **VARIANTS[variant])
    for example in make_batches(STEPS):
        reference.step(example)
        train(model, optimizer, [example])
        torch.testing.assert_close(weights(model), reference.w, **CLOSE)


def test_the_reference_can_tell_ascents_apart() -> None:
    """Every setting in the tables above moves the weights by more than the tolerance lets pass."""
    ends = []
    for metric, friendly in [(m, (1.0, 0.9)) for m in OPERATORS] + [("sam", (0.5, 0.9)), ("sam", (1.0, 0.6))]:
        reference = Reference(make_net(), Sgd(lr=0.3), OPERATORS[metric], rho=0.1, sigma=friendly[0], lmbda=friendly[1])
        for example in make_batches(STEPS):
            reference.step(example)
        ends.append(reference.w)
    distances = [float((a - b).norm()) for i, a in enumerate(ends) for b in ends[:i]]
    assert min(distances) > 1e-5


def test_the_named_classes_compose_with_the_friendly_form() -> None:
    for named, metric in ((ASAM, "asam-authors"), (FisherSAM, "fisher")):
        model = make_net()
        own = {"eta": 2.0} if named is FisherSAM else {}
        optimizer = named(model.parameters(), SGD, rho=0.1, friendly=True, sigma=1.0, lmbda=0.6, lr=0.3, **own)
        reference = Reference(make_net(), Sgd(lr=0.3), OPERATORS[metric], rho=0.1, sigma=1.0, lmbda=0.6)
        for example in make_batches(STEPS):
            reference.step(example)
            train(model, optimizer, [example])
        torch.testing.assert_close(weights(model), reference.w, **CLOSE)


@pytest.mark.parametrize("friendly", [None, (1.0, 0.6)])
def test_one_norm_over_all_groups_each_with_its_radius(friendly: tuple[float, float] | None) -> None:
    radii = (0.02, 0.3, 0.0, 0.1)
    model = make_net()
    params = list(model.parameters())
    groups = [{"params": [p], "rho": rho} for p, rho in zip(params, radii, strict=True)]
    sigma, lmbda = friendly or (0.0, 0.9)
    optimizer = SAM(groups, SGD, friendly=friendly is not None, sigma=sigma, lmbda=lmbda, lr=0.3)
    rho = flat(torch.full_like(p, r) for p, r in zip(params, radii, strict=True))
    reference = Reference(make_net(), Sgd(lr=0.3), OPERATORS["sam"], rho=rho, sigma=sigma, lmbda=lmbda)
    for example in make_batches(STEPS):
        reference.step(example)
        train(model, optimizer, [example])
    torch.testing.assert_close(weights(model), reference.w, **CLOSE)
