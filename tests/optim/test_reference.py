"""Ten steps of every ascent with every descent against a second writing of the equations."""

from __future__ import annotations

from itertools import product
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.optim import SGD

from holdfast.errors import HoldfastError
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


class Named(nn.Module):
    """All that names tell apart: weights and biases, of layers and of normalisation, and a matrix that is no weight."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.shift = nn.Parameter(torch.randn(1, 6))
        self.first, self.norm, self.last = nn.Linear(6, 8), nn.BatchNorm1d(8), nn.Linear(8, 3)
        nn.init.uniform_(self.norm.weight, 0.2, 3.0)
        self.double()

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.last(self.norm(self.first(x + self.shift)).relu())
        return out


def authors_asam(model: nn.Module, batches: list[tuple[Tensor, Tensor]], *, rho: float, eta: float, lr: float) -> None:
    """As the authors of ASAM step: T = |w| + η for each parameter with "weight" in its name, 1 for the others."""
    for x, y in batches:
        named = dict(model.named_parameters())
        grads = torch.autograd.grad(F.cross_entropy(model(x), y), list(named.values()))
        with torch.no_grad():
            t = [w.abs() + eta if "weight" in name else torch.ones_like(w) for name, w in named.items()]
            size = torch.stack([(own * g).norm() for own, g in zip(t, grads, strict=True)]).norm() + 1e-16
            steps = [rho * own**2 * g / size for own, g in zip(t, grads, strict=True)]
            for w, step in zip(named.values(), steps, strict=True):
                w += step
        moved = torch.autograd.grad(F.cross_entropy(model(x), y), list(named.values()))
        with torch.no_grad():
            for w, step, g in zip(named.values(), steps, moved, strict=True):
                w -= step
                w -= lr * g


def test_asam_by_names_is_that_of_its_authors() -> None:
    torch.manual_seed(1)
    batches = [(torch.randn(16, 6, dtype=torch.float64), torch.randint(3, (16,))) for _ in range(STEPS)]
    theirs = Named()
    authors_asam(theirs, batches, rho=0.5, eta=0.01, lr=0.1)
    ends = {}
    for scales in ("matrices", "weights"):
        model = Named()
        optimizer = ASAM(model.named_parameters(), SGD, rho=0.5, eta=0.01, scales=scales, lr=0.1)
        for x, y in batches:
            train(model, optimizer, [(x, y)])
        ends[scales] = weights(model)
    torch.testing.assert_close(ends["weights"], weights(theirs), rtol=1e-9, atol=1e-9)
    assert float((ends["matrices"] - ends["weights"]).norm()) > 1e-3, "the setting changes nothing"


def test_asam_by_names_needs_names() -> None:
    with pytest.raises(HoldfastError, match=r'scales "weights" goes by the names .* give model.named_parameters\(\)'):
        ASAM(Named().parameters(), SGD, scales="weights", lr=0.1)
    with pytest.raises(HoldfastError, match="unknown choice of scales 'weight'; did you mean 'weights'"):
        ASAM(Named().named_parameters(), SGD, scales="weight", lr=0.1)  # type: ignore[arg-type]
