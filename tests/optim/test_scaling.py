"""Under a gradient scaler, or autocast, the training is the plain one."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from holdfast.optim import ASAM, SAM, FisherSAM, FriendlySAM
from tests.optim.problems import (
    BASES,
    Example,
    identical,
    make_batches,
    make_net,
    make_optimizer,
    snapshot,
    train,
    weights,
)


def scaled_run(optimizer: SAM, model: nn.Module, scaler: torch.amp.GradScaler, batches: list[Example]) -> None:
    for x, y in batches:

        def closure(x: Tensor = x, y: Tensor = y) -> Tensor:
            loss = F.cross_entropy(model(x), y)
            scaler.scale(loss).backward()
            return loss

        optimizer.step(closure, scaler=scaler)
        scaler.update()


@pytest.mark.parametrize("base", BASES)
@pytest.mark.parametrize("kind", [SAM, ASAM, FisherSAM, FriendlySAM])
def test_a_scale_of_a_power_of_two_changes_nothing(base: str, kind: type[SAM]) -> None:
    batches = make_batches(6, dtype=torch.float32)
    scaled, plain = (make_net(dtype=torch.float32) for _ in range(2))
    with_scaler, without = make_optimizer(scaled, base, kind), make_optimizer(plain, base, kind)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**12, growth_interval=3)
    scaled_run(with_scaler, scaled, scaler, batches)
    train(plain, without, batches)
    assert scaler.get_scale() == 2.0**14  # it grew, twice
    assert identical(snapshot(scaled, with_scaler), snapshot(plain, without))


def test_any_scale_changes_nothing_but_rounding() -> None:
    batches = make_batches(6, dtype=torch.float32)
    scaled, plain = (make_net(dtype=torch.float32) for _ in range(2))
    optimizer = make_optimizer(scaled)
    scaled_run(optimizer, scaled, torch.amp.GradScaler("cpu", init_scale=1000.0), batches)
    reference = make_optimizer(plain)
    train(plain, reference, batches)
    torch.testing.assert_close(weights(scaled), weights(plain), rtol=1e-4, atol=1e-5)
    for p, q in zip(scaled.parameters(), plain.parameters(), strict=True):
        torch.testing.assert_close(optimizer.average[p], reference.average[q], rtol=1e-4, atol=1e-5)


def test_the_two_halves_take_the_scaler_too() -> None:
    batches = make_batches(6, dtype=torch.float32)
    scaled, plain = (make_net(dtype=torch.float32) for _ in range(2))
    optimizer, scaler = make_optimizer(scaled), torch.amp.GradScaler("cpu", init_scale=2.0**10)
    for x, y in batches:
        scaler.scale(F.cross_entropy(scaled(x), y)).backward()
        optimizer.first_step(zero_grad=True, scaler=scaler)
        scaler.scale(F.cross_entropy(scaled(x), y)).backward()
        optimizer.second_step(zero_grad=True, scaler=scaler)
        scaler.update()
    train(plain, make_optimizer(plain), batches)
    assert torch.equal(weights(scaled), weights(plain))


def test_a_scaler_that_is_off_is_none() -> None:
    batches = make_batches(6)
    one, other = make_net(), make_net()
    scaled_run(make_optimizer(one), one, torch.amp.GradScaler("cpu", enabled=False), batches)
    train(other, make_optimizer(other), batches)
    assert torch.equal(weights(one), weights(other))


@pytest.mark.parametrize("base", ["momentum", "fused momentum", "adam", "fused adamw"])
def test_an_overflow_backs_the_scale_off_and_training_goes_on(base: str) -> None:
    batches = make_batches(8, dtype=torch.float32)
    model, plain = (make_net(dtype=torch.float32) for _ in range(2))
    optimizer, scaler = make_optimizer(model, base), torch.amp.GradScaler("cpu", init_scale=2.0**127)
    before = snapshot(model, optimizer)[0]
    while scaler.get_scale() > 2.0**100:
        scale = scaler.get_scale()
        factor = torch.tensor(1e6)  # overflows float32 at these scales

        def closure(factor: Tensor = factor) -> None:
            scaler.scale(factor * F.cross_entropy(model(batches[0][0]), batches[0][1])).backward()

        optimizer.step(closure, scaler=scaler)
        scaler.update()
        if scaler.get_scale() == scale:
            break
        assert identical(list(model.parameters()), before)
    else:
        pytest.fail("the scale never came down to where the step works")
    assert not identical(list(model.parameters()), before)
    reference = make_optimizer(plain, base)
    reference.step(lambda: (torch.tensor(1e6) * F.cross_entropy(plain(batches[0][0]), batches[0][1])).backward())
    scaled_run(optimizer, model, scaler, batches[1:])
    train(plain, reference, batches[1:])
    assert torch.equal(weights(model), weights(plain))


def test_under_bfloat16_autocast_weights_and_averages_stay_in_float32() -> None:
    batches = make_batches(10, dtype=torch.float32)
    half, full = (make_net(dtype=torch.float32) for _ in range(2))
    optimizer, reference = make_optimizer(half), make_optimizer(full)
    for x, y in batches:

        def closure(x: Tensor = x, y: Tensor = y) -> None:
            with torch.autocast("cpu", torch.bfloat16):
                loss = F.cross_entropy(half(x), y)
            loss.backward()

        optimizer.step(closure)
    train(full, reference, batches)
    assert 0 < (weights(half) - weights(full)).norm() < 0.02 * (weights(full) - weights(make_net())).norm()
    assert all(p.dtype == optimizer.average[p].dtype == torch.float32 for p in half.parameters())


@pytest.mark.parametrize("check", [True, False])
@pytest.mark.parametrize("kind", [SAM, FriendlySAM])
def test_a_scale_that_overflows_in_the_first_pass_alone_is_backed_off(kind: type[SAM], check: bool) -> None:
    """At weights of NaN the gradient of an absolute loss is 0: sign(NaN)."""
    torch.manual_seed(0)
    model = nn.Linear(8, 1)
    optimizer = kind(model.parameters(), torch.optim.SGD, lr=1e-3, skip_nonfinite=check)
    x, y, scaler = torch.randn(16, 8), torch.randn(16, 1), torch.amp.GradScaler("cpu")
    before = weights(model)

    def closure() -> None:
        with torch.autocast("cpu", torch.float16):
            out = model(x)
        scaler.scale(F.l1_loss(out, y.half(), reduction="sum")).backward()

    for _ in range(30):
        optimizer.step(closure, scaler=scaler)
        scaler.update()
    assert scaler.get_scale() <= 2.0**13  # 16 images of up to 2 are 32768 at 2 ** 10; it begins at 2 ** 16
    after = weights(model)
    assert all(bool(w.isfinite().all()) for w in after)
    assert not identical(before, after)


def test_autocast_around_both_passes_sees_the_moved_weights() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 2))
    optimizer = SAM(model.parameters(), torch.optim.SGD, lr=0.1, rho=1.0)
    x, losses = torch.randn(16, 8), []

    def closure() -> None:
        loss = model(x).float().square().mean()
        loss.backward()
        losses.append(loss.item())

    with torch.autocast("cpu", torch.bfloat16):
        optimizer.step(closure)
    with torch.autocast("cpu", torch.bfloat16):
        losses.append(model(x).float().square().mean().item())
    assert losses[1] > 1.5 * losses[0]  # uphill
    assert losses[2] < losses[0]
