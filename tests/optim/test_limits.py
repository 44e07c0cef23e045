"""Trainings that must be the same one: settings that take a part away, two halves, opposite signs; and bad settings."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch.optim import SGD

from holdfast.errors import HoldfastError
from holdfast.optim import ASAM, SAM, Adaptive, Fisher, FisherSAM, FriendlySAM
from tests.optim.problems import CLOSE, Example, loss_closure, make_batches, make_net, train, weights
from tests.optim.reference import DESCENTS, METRICS, STEPS, VARIANTS


@pytest.mark.parametrize(
    ("named", "settings"),
    [
        (ASAM, {"rho": 0.5, "metric": Adaptive(0.01, "matrices")}),
        (FisherSAM, {"rho": 0.05, "metric": Fisher(1.0)}),
        (FriendlySAM, {"rho": 0.05, "friendly": True, "sigma": 1.0, "lmbda": 0.9}),
    ],
)
def test_named_classes_are_sam_with_settings(named: type[SAM], settings: dict[str, Any]) -> None:
    one, other = make_net(), make_net()
    train(one, named(one.parameters(), SGD, lr=0.1), make_batches(STEPS))
    train(other, SAM(other.parameters(), SGD, lr=0.1, **settings), make_batches(STEPS))
    assert torch.equal(weights(one), weights(other))


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
    torch.testing.assert_close(weights(upwards), weights(downwards), **CLOSE)
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


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"rho": -0.1}, "rho must be a number >= 0 and finite, got -0.1"),
        ({"rho": torch.tensor(math.nan)}, "rho must be a number >= 0 and finite, got tensor(nan)"),
        ({"rho": torch.tensor(-1.0)}, "rho must be a number >= 0 and finite, got tensor(-1.)"),
        ({"rho": "0.1"}, "rho must be a number >= 0 and finite, got '0.1'"),
        ({"rho": math.inf}, "rho must be a number >= 0 and finite, got inf"),
        ({"sigma": -1.0}, "sigma must be a number >= 0 and finite, got -1.0"),
        ({"sigma": math.inf}, "sigma must be a number >= 0 and finite, got inf"),
        ({"lmbda": 1.0}, "lmbda must be a number in [0, 1), got 1.0"),
        ({"lmbda": -0.1}, "lmbda must be a number in [0, 1), got -0.1"),
        ({"adaptive": True, "metric": Fisher()}, "adaptive and metric (Fisher(eta=1.0)) exclude each other"),
    ],
)
def test_bad_settings_are_named(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(HoldfastError) as caught:
        SAM(make_net().parameters(), SGD, lr=0.1, **settings)
    assert message in str(caught.value)


@pytest.mark.parametrize("eta", [-1.0, math.inf, math.nan])
@pytest.mark.parametrize("metric", [Adaptive, Fisher])
def test_a_bad_eta_is_named(metric: type[Adaptive | Fisher], eta: float) -> None:
    with pytest.raises(HoldfastError, match=f"eta must be >= 0 and finite, got {eta}"):
        metric(eta)


@pytest.mark.parametrize(("name", "value"), [("rho", -0.1), ("sigma", -1.0), ("lmbda", 1.0)])
def test_bad_settings_of_a_group_are_named(name: str, value: float) -> None:
    model = make_net()
    with pytest.raises(HoldfastError, match=f"{name} must be .* got {value}"):
        SAM([{"params": model[0].parameters(), name: value}], SGD, lr=0.1)
    optimizer = SAM(model[0].parameters(), SGD, lr=0.1)
    with pytest.raises(HoldfastError, match=f"{name} must be .* got {value}"):
        optimizer.add_param_group({"params": model[2].parameters(), name: value})


def test_a_share_of_the_mean_is_of_friendly_ascents_only() -> None:
    with pytest.raises(HoldfastError, match=r"sigma 0.5 is of friendly ascents; give friendly=True as well"):
        ASAM(make_net().parameters(), SGD, lr=0.1, sigma=0.5)
    friendly = ASAM(make_net().parameters(), SGD, lr=0.1, sigma=0.5, friendly=True)
    assert friendly.param_groups[0]["sigma"] == 0.5
    SAM(make_net().parameters(), SGD, lr=0.1, sigma=0.0)  # says what SAM is
