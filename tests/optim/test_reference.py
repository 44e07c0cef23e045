"""Ten steps of every ascent with every descent against a second writing of the equations, on one flat vector."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import product
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.func import functional_call
from torch.optim import SGD, Adam, AdamW

from holdfast.errors import HoldfastError
from holdfast.optim import ASAM, SAM, Adaptive, Fisher, FisherSAM, FriendlySAM
from tests.optim.problems import Example, flat, loss_closure, make_batches, make_net, train, weights

STEPS = 10
TOLERANCE = {"rtol": 0.0, "atol": 1e-12}


@dataclass
class Sgd:
    """w ← w − lr·b, where b ← momentum·b + (g + weight_decay·w), and b is the first gradient itself at first."""

    lr: float
    momentum: float = 0.0
    weight_decay: float = 0.0
    dampening: float = 0.0
    nesterov: bool = False
    maximize: bool = False
    buffer: Tensor | None = None

    def __call__(self, w: Tensor, g: Tensor) -> Tensor:
        g = (-g if self.maximize else g) + self.weight_decay * w
        if self.momentum:
            first = self.buffer is None
            self.buffer = g if first else self.momentum * self.buffer + (1 - self.dampening) * g
            g = g + self.momentum * self.buffer if self.nesterov else self.buffer
        return w - self.lr * g


@dataclass
class Moments:
    """Adam, and AdamW when the decay is decoupled."""

    lr: float
    betas: tuple[float, float] = (0.9, 0.999)
    eps: float = 1e-8
    weight_decay: float = 0.0
    decoupled: bool = False
    maximize: bool = False
    t: int = 0
    first: Tensor | float = 0.0
    second: Tensor | float = 0.0

    def __call__(self, w: Tensor, g: Tensor) -> Tensor:
        self.t += 1
        g = -g if self.maximize else g
        if self.decoupled:
            w = w - self.lr * self.weight_decay * w
        else:
            g = g + self.weight_decay * w
        a, b = self.betas
        self.first = a * self.first + (1 - a) * g
        self.second = b * self.second + (1 - b) * g**2
        unbiased = self.first / (1 - a**self.t), self.second / (1 - b**self.t)
        return w - self.lr * unbiased[0] / (unbiased[1].sqrt() + self.eps)


Operator = Callable[[Tensor, Tensor, Tensor], Tensor]
"""T as a diagonal, from the weights, the gradient, and which of the weights are in tensors of one dimension."""

OPERATORS: dict[str, Operator] = {
    "sam": lambda w, g, vector: torch.ones_like(w),
    "asam": lambda w, g, vector: w.abs(),
    "asam-authors": lambda w, g, vector: torch.where(vector, 1.0, w.abs() + 0.01),
    "fisher": lambda w, g, vector: (1 + 2.0 * g**2) ** -0.5,
}


@dataclass
class Reference:
    """w of the flat problem over time."""

    model: nn.Module
    descend: Callable[[Tensor, Tensor], Tensor]
    operator: Operator
    rho: Tensor | float
    sigma: float = 0.0
    lmbda: float = 0.9
    mean: Tensor | None = None
    w: Tensor = field(init=False)

    def __post_init__(self) -> None:
        self.w = weights(self.model)
        self.vector = flat(torch.full_like(p, p.ndim == 1, dtype=torch.bool) for p in self.model.parameters())

    def gradient(self, w: Tensor, example: Example) -> Tensor:
        w = w.clone().requires_grad_()
        names, shapes = zip(*((n, p.shape) for n, p in self.model.named_parameters()), strict=True)
        parts = [part.view(shape) for part, shape in zip(w.split([s.numel() for s in shapes]), shapes, strict=True)]
        loss = F.cross_entropy(
            functional_call(self.model, dict(zip(names, parts, strict=True)), example[0]), example[1]
        )
        return torch.autograd.grad(loss, w)[0]

    def climb(self, example: Example) -> Tensor:
        """ε at w; the mean moves on."""
        g = self.gradient(self.w, example)
        d = g if self.mean is None else g - self.sigma * self.mean
        self.mean = g if self.mean is None else self.lmbda * self.mean + (1 - self.lmbda) * g
        t = self.operator(self.w, g, self.vector)
        return self.rho * t**2 * d / ((t * d).norm() + 1e-12)

    def step(self, example: Example) -> None:
        self.w = self.descend(self.w, self.gradient(self.w + self.climb(example), example))


METRICS: dict[str, dict[str, Any]] = {
    "sam": {},
    "asam": {"adaptive": True},
    "asam-authors": {"metric": Adaptive(0.01, vectors=False)},
    "fisher": {"metric": Fisher(2.0)},
}
DESCENTS: dict[str, tuple[Any, Any, dict[str, Any]]] = {
    "sgd": (SGD, Sgd, {"lr": 0.3}),
    "momentum": (SGD, Sgd, {"lr": 0.2, "momentum": 0.9, "weight_decay": 0.01}),
    "dampening": (SGD, Sgd, {"lr": 0.2, "momentum": 0.8, "dampening": 0.3}),
    "nesterov": (SGD, Sgd, {"lr": 0.2, "momentum": 0.9, "weight_decay": 0.01, "nesterov": True}),
    "adam": (Adam, Moments, {"lr": 0.02, "weight_decay": 0.01}),
    "adamw": (AdamW, Moments, {"lr": 0.02, "weight_decay": 0.1}),
}
VARIANTS = {"loop": {"foreach": False}, "foreach": {"foreach": True}, "fused": {"fused": True}}
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
        torch.testing.assert_close(weights(model), reference.w, **TOLERANCE)


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


@pytest.mark.parametrize(
    ("named", "settings"),
    [
        (ASAM, {"rho": 0.5, "metric": Adaptive(0.01, vectors=False)}),
        (FisherSAM, {"rho": 0.05, "metric": Fisher(1.0)}),
        (FriendlySAM, {"rho": 0.05, "friendly": True, "sigma": 1.0, "lmbda": 0.9}),
    ],
)
def test_named_classes_are_sam_with_settings(named: type[SAM], settings: dict[str, Any]) -> None:
    one, other = make_net(), make_net()
    train(one, named(one.parameters(), SGD, lr=0.1), make_batches(STEPS))
    train(other, SAM(other.parameters(), SGD, lr=0.1, **settings), make_batches(STEPS))
    assert torch.equal(weights(one), weights(other))


def test_the_named_classes_compose_with_the_friendly_form() -> None:
    for named, metric in ((ASAM, "asam-authors"), (FisherSAM, "fisher")):
        model = make_net()
        own = {"eta": 2.0} if named is FisherSAM else {}
        optimizer = named(model.parameters(), SGD, rho=0.1, friendly=True, sigma=1.0, lmbda=0.6, lr=0.3, **own)
        reference = Reference(make_net(), Sgd(lr=0.3), OPERATORS[metric], rho=0.1, sigma=1.0, lmbda=0.6)
        for example in make_batches(STEPS):
            reference.step(example)
            train(model, optimizer, [example])
        torch.testing.assert_close(weights(model), reference.w, **TOLERANCE)


@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("metric", METRICS)
def test_sigma_zero_is_the_plain_ascent_exactly(metric: str, variant: str) -> None:
    settings = {"rho": 0.1, "lr": 0.2, "momentum": 0.9, **METRICS[metric], **VARIANTS[variant]}
    friendly, plain = make_net(), make_net()
    train(friendly, FriendlySAM(friendly.parameters(), SGD, sigma=0.0, **settings), make_batches(STEPS))
    train(plain, SAM(plain.parameters(), SGD, **settings), make_batches(STEPS))
    assert torch.equal(weights(friendly), weights(plain))


@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("descent", DESCENTS)
@pytest.mark.parametrize("sigma", [0.0, 0.5, 1.0])
def test_rho_zero_is_the_base_optimiser_exactly(descent: str, variant: str, sigma: float) -> None:
    kind, _, settings = DESCENTS[descent]
    settings = settings | VARIANTS[variant]
    climbing, plain = make_net(), make_net()
    train(climbing, FriendlySAM(climbing.parameters(), kind, rho=0.0, sigma=sigma, **settings), make_batches(STEPS))
    train(plain, kind(plain.parameters(), **settings), make_batches(STEPS))
    assert torch.equal(weights(climbing), weights(plain))


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
    torch.testing.assert_close(weights(model), reference.w, **TOLERANCE)


@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("friendly", [False, True])
def test_maximising_is_minimising_the_opposite(variant: str, friendly: bool) -> None:
    settings = {"rho": 0.1, "friendly": friendly, "lr": 0.1, "momentum": 0.9, **VARIANTS[variant]}
    upwards, downwards = make_net(), make_net()
    up = SAM(upwards.parameters(), SGD, maximize=True, **settings)
    down = SAM(downwards.parameters(), SGD, **settings)
    for example in make_batches(STEPS):
        up.step(loss_closure(upwards, example))

        def negative(example: Example = example) -> None:
            (-F.cross_entropy(downwards(example[0]), example[1])).backward()

        down.step(negative)
    torch.testing.assert_close(weights(upwards), weights(downwards), **TOLERANCE)
    assert not torch.equal(weights(upwards), weights(make_net()))


@pytest.mark.parametrize("variant", VARIANTS)
def test_weights_come_back_bit_for_bit_and_stay_where_they_lie(variant: str) -> None:
    model = make_net()
    optimizer = FriendlySAM(model.parameters(), SGD, rho=0.3, lr=0.1, momentum=0.9, **VARIANTS[variant])
    places = [p.data_ptr() for p in model.parameters()]
    for example in make_batches(STEPS):
        before = weights(model)
        loss_closure(model, example)()
        optimizer.first_step(zero_grad=True)
        assert not torch.equal(weights(model), before)
        optimizer.restore()
        assert torch.equal(weights(model), before)
        loss_closure(model, example)()
        optimizer.second_step()
        optimizer.zero_grad()
    assert places == [p.data_ptr() for p in model.parameters()]


def test_the_averages_stay_where_they_lie() -> None:
    model = make_net()
    optimizer = FriendlySAM(model.parameters(), SGD, lr=0.1)
    train(model, optimizer, make_batches(2))
    places = [optimizer.average[p].data_ptr() for p in model.parameters()]
    train(model, optimizer, make_batches(3))
    assert places == [optimizer.average[p].data_ptr() for p in model.parameters()]


def test_two_halves_are_the_whole_step() -> None:
    halves, whole = make_net(), make_net()
    settings = {"rho": 0.1, "lr": 0.1, "momentum": 0.9}
    two, one = (FriendlySAM(m.parameters(), SGD, **settings) for m in (halves, whole))
    for example in make_batches(STEPS):
        loss_closure(halves, example)()
        two.first_step(zero_grad=True)
        loss_closure(halves, example)()
        two.second_step(zero_grad=True)
        one.step(loss_closure(whole, example))
    assert torch.equal(weights(halves), weights(whole))


def test_step_returns_the_loss_at_the_unmoved_weights() -> None:
    model, example = make_net(), make_batches(1)[0]
    here = F.cross_entropy(model(example[0]), example[1]).item()
    assert SAM(model.parameters(), SGD, rho=1.0, lr=0.1).step(loss_closure(model, example)).item() == here


# A gradient c that never changes is the full gradient itself: at sigma = 1 nothing of it may be left in the ascent.


def climb(optimizer: Any, w: Tensor, gradient: Tensor) -> Tensor:
    """ε of one step with the given gradient in both passes."""
    before = w.detach().clone()
    w.grad = gradient.clone()
    optimizer.first_step(zero_grad=True)
    moved = w.detach() - before
    w.grad = gradient.clone()
    optimizer.second_step()
    return moved


def share_left(make: Callable[[list[Tensor]], Any], *, burn_in: int = 100, steps: int = 20) -> float:
    """Largest |cos(ε, c)| after burn-in, for gradients c + n with small noise n at right angles to c."""
    generator = torch.Generator().manual_seed(3)
    c = torch.randn(40, generator=generator, dtype=torch.float64)
    w = nn.Parameter(torch.randn(40, generator=generator, dtype=torch.float64))
    optimizer = make([w])
    left = []
    for t in range(burn_in + steps):
        noise = 0.01 * torch.randn(40, generator=generator, dtype=torch.float64)
        moved = climb(optimizer, w, c + noise - (noise @ c) / (c @ c) * c)
        if t >= burn_in:
            left.append(float((moved @ c).abs() / (moved.norm() * c.norm())))
    return max(left)


class ResidualFed:
    """The mistake: the mean follows g − m instead of g, so it settles at half the gradient."""

    def __init__(self, params: list[Tensor], *, rho: float = 0.05, lmbda: float = 0.9) -> None:
        (self.w,), self.rho, self.lmbda = params, rho, lmbda
        self.mean: Tensor | None = None

    @torch.no_grad()
    def first_step(self, zero_grad: bool) -> None:
        d = self.w.grad if self.mean is None else self.w.grad - self.mean
        self.mean = d if self.mean is None else self.lmbda * self.mean + (1 - self.lmbda) * d
        self.before = self.w.clone()
        self.w += self.rho * d / d.norm()

    @torch.no_grad()
    def second_step(self) -> None:
        self.w.copy_(self.before)


@pytest.mark.parametrize("lmbda", [0.6, 0.9, 0.95])
def test_a_constant_gradient_is_removed_wholly(lmbda: float) -> None:
    assert share_left(lambda p: FriendlySAM(p, SGD, lmbda=lmbda, lr=1e-3)) < 1e-9
    assert share_left(lambda p: ResidualFed(p, lmbda=lmbda)) > 0.99
    assert share_left(lambda p: SAM(p, SGD, lr=1e-3)) > 0.99


@pytest.mark.parametrize("variant", VARIANTS)
def test_nothing_is_left_to_climb_when_the_gradient_never_changes(variant: str) -> None:
    w = nn.Parameter(torch.zeros(40, dtype=torch.float64))
    optimizer = FriendlySAM([w], SGD, rho=0.1, lmbda=0.6, lr=1e-3, **VARIANTS[variant])
    c = torch.linspace(-1, 2, 40, dtype=torch.float64)
    moves = [climb(optimizer, w, c).norm().item() for _ in range(60)]
    assert moves[0] == pytest.approx(0.1)
    assert moves[-1] == 0
    assert torch.equal(optimizer.average[w], c)


@pytest.mark.dev
def test_pytorch_optimizer_leaves_half_of_it_before_version_4_1() -> None:
    peer = pytest.importorskip("pytorch_optimizer", exc_type=ImportError)
    from importlib.metadata import version

    fixed = tuple(int(part) for part in version("pytorch_optimizer").split(".")[:2]) >= (4, 1)
    left = share_left(lambda p: peer.FriendlySAM(p, SGD, lmbda=0.9, lr=1e-3))
    assert (left < 1e-9) == fixed
    assert fixed or left > 0.99


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"rho": -0.1}, "rho must be >= 0, got -0.1"),
        ({"sigma": -1.0}, "sigma must be >= 0, got -1.0"),
        ({"lmbda": 1.0}, "lmbda must be in [0, 1), got 1.0"),
        ({"lmbda": -0.1}, "lmbda must be in [0, 1), got -0.1"),
        ({"adaptive": True, "metric": Fisher()}, "adaptive and metric (Fisher(eta=1.0)) exclude each other"),
    ],
)
def test_bad_settings_are_named(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(HoldfastError) as caught:
        SAM(make_net().parameters(), SGD, lr=0.1, **settings)
    assert message in str(caught.value)


@pytest.mark.parametrize(("name", "value"), [("rho", -0.1), ("sigma", -1.0), ("lmbda", 1.0)])
def test_bad_settings_of_a_group_are_named(name: str, value: float) -> None:
    model = make_net()
    with pytest.raises(HoldfastError, match=f"{name} must be .* got {value}"):
        SAM([{"params": model[0].parameters(), name: value}], SGD, lr=0.1)
    optimizer = SAM(model[0].parameters(), SGD, lr=0.1)
    with pytest.raises(HoldfastError, match=f"{name} must be .* got {value}"):
        optimizer.add_param_group({"params": model[2].parameters(), name: value})
