"""What the ascent means together with scaling, accumulation, clipping, missing gradients, schedules and bad numbers.

Each promise is tested by equivalence: two trainings that must be the same one.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from itertools import product
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.optim import LBFGS, SGD, Adagrad, Adam, AdamW, NAdam, RMSprop, SparseAdam, lr_scheduler

from holdfast.errors import HoldfastError
from holdfast.optim import ASAM, SAM, FisherSAM, FriendlySAM
from tests.optim.problems import (
    Example,
    PlainLoop,
    identical,
    loss_closure,
    make_batches,
    make_net,
    run_loop,
    train,
    weights,
)

CLOSE = {"rtol": 0.0, "atol": 1e-12}
BASES: dict[str, tuple[Any, dict[str, Any]]] = {
    "sgd": (SGD, {"lr": 0.1, "foreach": False}),
    "momentum": (SGD, {"lr": 0.1, "momentum": 0.9, "foreach": True}),
    "fused momentum": (SGD, {"lr": 0.1, "momentum": 0.9, "fused": True}),
    "fused dampening": (SGD, {"lr": 0.1, "momentum": 0.9, "dampening": 0.5, "fused": True}),
    "fused nesterov": (SGD, {"lr": 0.1, "momentum": 0.9, "weight_decay": 0.1, "nesterov": True, "fused": True}),
    "adam": (Adam, {"lr": 0.02}),
    "fused adamw": (AdamW, {"lr": 0.02, "amsgrad": True, "fused": True}),
    "fused adagrad": (Adagrad, {"lr": 0.02, "fused": True}),
    "nadam": (NAdam, {"lr": 0.02}),
    "rmsprop": (RMSprop, {"lr": 0.02, "momentum": 0.5}),
}


@pytest.fixture
def unset_memory_is_nan() -> Iterator[None]:
    """Fresh tensors hold NaN, so that reading one before it is written shows."""
    torch.use_deterministic_algorithms(True)
    assert torch.empty(1).isnan()
    yield
    torch.use_deterministic_algorithms(False)


def make(model: nn.Module, base: str = "momentum", kind: type[SAM] = FriendlySAM, **settings: Any) -> SAM:
    descent, own = BASES[base]
    return kind(model.parameters(), descent, **{"rho": 0.1, **own, **settings})


def snapshot(model: nn.Module, optimizer: SAM) -> Any:
    return copy.deepcopy([list(model.parameters()), optimizer.state_dict()])


# GradScaler


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
    with_scaler, without = make(scaled, base, kind), make(plain, base, kind)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**12, growth_interval=3)
    scaled_run(with_scaler, scaled, scaler, batches)
    train(plain, without, batches)
    assert scaler.get_scale() == 2.0**14  # it grew, twice
    assert identical(snapshot(scaled, with_scaler), snapshot(plain, without))


def test_any_scale_changes_nothing_but_rounding() -> None:
    batches = make_batches(6, dtype=torch.float32)
    scaled, plain = (make_net(dtype=torch.float32) for _ in range(2))
    optimizer = make(scaled)
    scaled_run(optimizer, scaled, torch.amp.GradScaler("cpu", init_scale=1000.0), batches)
    reference = make(plain)
    train(plain, reference, batches)
    torch.testing.assert_close(weights(scaled), weights(plain), rtol=1e-4, atol=1e-5)
    for p, q in zip(scaled.parameters(), plain.parameters(), strict=True):
        torch.testing.assert_close(optimizer.average[p], reference.average[q], rtol=1e-4, atol=1e-5)


def test_the_two_halves_take_the_scaler_too() -> None:
    batches = make_batches(6, dtype=torch.float32)
    scaled, plain = (make_net(dtype=torch.float32) for _ in range(2))
    optimizer, scaler = make(scaled), torch.amp.GradScaler("cpu", init_scale=2.0**10)
    for x, y in batches:
        scaler.scale(F.cross_entropy(scaled(x), y)).backward()
        optimizer.first_step(zero_grad=True, scaler=scaler)
        scaler.scale(F.cross_entropy(scaled(x), y)).backward()
        optimizer.second_step(zero_grad=True, scaler=scaler)
        scaler.update()
    train(plain, make(plain), batches)
    assert torch.equal(weights(scaled), weights(plain))


def test_a_scaler_that_is_off_is_none() -> None:
    batches = make_batches(6)
    one, other = make_net(), make_net()
    scaled_run(make(one), one, torch.amp.GradScaler("cpu", enabled=False), batches)
    train(other, make(other), batches)
    assert torch.equal(weights(one), weights(other))


@pytest.mark.parametrize("base", ["momentum", "fused momentum", "adam", "fused adamw"])
def test_an_overflow_backs_the_scale_off_and_training_goes_on(base: str) -> None:
    batches = make_batches(8, dtype=torch.float32)
    model, plain = (make_net(dtype=torch.float32) for _ in range(2))
    optimizer, scaler = make(model, base), torch.amp.GradScaler("cpu", init_scale=2.0**127)
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
    reference = make(plain, base)
    reference.step(lambda: (torch.tensor(1e6) * F.cross_entropy(plain(batches[0][0]), batches[0][1])).backward())
    scaled_run(optimizer, model, scaler, batches[1:])
    train(plain, reference, batches[1:])
    assert torch.equal(weights(model), weights(plain))


def test_under_bfloat16_autocast_weights_and_averages_stay_in_float32() -> None:
    batches = make_batches(10, dtype=torch.float32)
    half, full = (make_net(dtype=torch.float32) for _ in range(2))
    optimizer, reference = make(half), make(full)
    for x, y in batches:

        def closure(x: Tensor = x, y: Tensor = y) -> None:
            with torch.autocast("cpu", torch.bfloat16):
                loss = F.cross_entropy(half(x), y)
            loss.backward()

        optimizer.step(closure)
    train(full, reference, batches)
    assert 0 < (weights(half) - weights(full)).norm() < 0.02 * (weights(full) - weights(make_net())).norm()
    assert all(p.dtype == optimizer.average[p].dtype == torch.float32 for p in half.parameters())


# Gradients that are not finite


def spoiled_closure(model: nn.Module, example: Example, *, bad_pass: int, value: float) -> Callable[[], Tensor]:
    """One number of one gradient goes wrong, in the given pass."""
    calls = 0

    def closure() -> Tensor:
        nonlocal calls
        calls += 1
        loss = loss_closure(model, example)()
        if calls == bad_pass:
            model[2].weight.grad[1, 2] = value
        return loss

    return closure


@pytest.mark.usefixtures("unset_memory_is_nan")
@pytest.mark.parametrize("base", BASES)
@pytest.mark.parametrize(("bad_pass", "value"), list(product([1, 2], [float("nan"), float("inf"), -float("inf")])))
@pytest.mark.parametrize("when", [0, 1, 4])
def test_a_step_with_a_bad_gradient_never_happened(base: str, bad_pass: int, value: float, when: int) -> None:
    batches = make_batches(8)
    model, plain = make_net(), make_net()
    optimizer, reference = make(model, base), make(plain, base)
    train(model, optimizer, batches[:when])
    before = snapshot(model, optimizer)
    for _ in range(2):
        optimizer.step(spoiled_closure(model, batches[7], bad_pass=bad_pass, value=value))
        assert identical(before[0], list(model.parameters()))
        if when:
            assert identical(before, snapshot(model, optimizer))
    train(model, optimizer, batches[when:])
    train(plain, reference, batches)
    assert identical(snapshot(model, optimizer), snapshot(plain, reference))


@pytest.mark.parametrize("base", ["momentum", "fused momentum"])
def test_a_bad_first_gradient_counts_even_if_the_second_pass_does_not_show_it(base: str) -> None:
    model, (example,) = make_net(), make_batches(1)
    optimizer = make(model, base)
    train(model, optimizer, [example])
    before = snapshot(model, optimizer)
    for p in model.parameters():
        p.grad = torch.full_like(p, float("nan"))
    optimizer.first_step()
    for p in model.parameters():
        p.grad = torch.ones_like(p)
    optimizer.second_step()
    assert identical(before, snapshot(model, optimizer))


@pytest.mark.parametrize("base", ["momentum", "fused momentum"])
@pytest.mark.parametrize("clip", [nn.utils.clip_grad_value_, nn.utils.clip_grad_norm_])
def test_clipping_does_not_hide_a_bad_gradient(base: str, clip: Callable[..., Any]) -> None:
    model, batches = make_net(), make_batches(3)
    optimizer = make(model, base)
    train(model, optimizer, batches[:2])
    before = snapshot(model, optimizer)
    closure = spoiled_closure(model, batches[2], bad_pass=2, value=float("inf"))
    optimizer.step(closure, before_descent=lambda: clip(model.parameters(), 1.0))
    assert identical(before, snapshot(model, optimizer))


@pytest.mark.parametrize("base", ["momentum", "fused momentum"])
def test_a_gradient_whose_norm_overflows_is_bad_in_both_passes(base: str) -> None:
    """Processes that climb alone must all see it, and they share the second gradient only."""
    model = make_net(dtype=torch.float32)
    optimizer = make(model, base)
    batches = make_batches(2, dtype=torch.float32)
    train(model, optimizer, batches[:1])
    before = snapshot(model, optimizer)
    passes = []

    def closure() -> None:
        loss_closure(model, batches[1])()
        passes.append(all(bool(p.grad.isfinite().all()) for p in model.parameters()))
        if len(passes) == 1:
            model[0].weight.grad.fill_(1e30)

    optimizer.step(closure)
    assert passes == [True, False]
    assert identical(before, snapshot(model, optimizer))


@pytest.mark.parametrize("base", ["momentum", "fused momentum"])
def test_the_check_can_be_turned_off(base: str) -> None:
    model, batches = make_net(), make_batches(3)
    checked, unchecked = make_net(), make_net()
    for m, skip in ((checked, True), (unchecked, False)):
        train(m, make(m, base, skip_nonfinite=skip), batches)
    assert torch.equal(weights(checked), weights(unchecked))
    optimizer = make(model, base, skip_nonfinite=False)
    optimizer.step(spoiled_closure(model, batches[0], bad_pass=2, value=float("nan")))
    assert weights(model).isnan().any()


# Accumulation and clipping


@pytest.mark.parametrize("base", ["momentum", "fused adamw"])
@pytest.mark.parametrize("kind", [SAM, ASAM, FisherSAM, FriendlySAM])
@pytest.mark.parametrize("parts", [2, 4])
def test_small_batches_in_the_closure_are_one_large_batch(base: str, kind: type[SAM], parts: int) -> None:
    batches = make_batches(6)
    whole, split = make_net(), make_net()
    train(whole, make(whole, base, kind), batches)
    optimizer = make(split, base, kind)
    for x, y in batches:

        def closure(x: Tensor = x, y: Tensor = y) -> None:
            for own_x, own_y in zip(x.chunk(parts), y.chunk(parts), strict=True):
                (F.cross_entropy(split(own_x), own_y) / parts).backward()

        optimizer.step(closure)
    torch.testing.assert_close(weights(split), weights(whole), **CLOSE)


def clipped_loop(model: nn.Module, batches: list[Example], *, limit: float) -> None:
    """SAM by hand, with the second gradient clipped before momentum sees it."""
    base = SGD(model.parameters(), lr=0.1, momentum=0.9)
    base.register_step_pre_hook(lambda *_: nn.utils.clip_grad_norm_(model.parameters(), limit) and None)
    run_loop(PlainLoop(model.parameters(), base, rho=0.1, sigma=1.0, lmbda=0.9), model, batches)


@pytest.mark.parametrize("base", ["momentum", "fused momentum"])
@pytest.mark.parametrize("way", ["before_descent", "second_step", "hook", "unclipped"])
def test_clipping_before_the_descent(way: str, base: str) -> None:
    batches = make_batches(6)
    model, reference = make_net(), make_net()
    clipped_loop(reference, batches, limit=0.05)
    optimizer = make(model, base)

    def clip(*_: Any) -> None:
        nn.utils.clip_grad_norm_(model.parameters(), 0.05)

    if way == "hook":
        optimizer.base_optimizer.register_step_pre_hook(clip)
    if way == "second_step":
        for example in batches:
            loss_closure(model, example)()
            optimizer.first_step(zero_grad=True)
            loss_closure(model, example)()
            optimizer.second_step(zero_grad=True, before_descent=clip)
    else:
        train(model, optimizer, batches, before_descent=clip if way == "before_descent" else None)
    close = torch.allclose(weights(model), weights(reference), rtol=0, atol=1e-12)
    assert close == (way != "unclipped")


def test_before_descent_finds_the_unmoved_weights_and_the_unscaled_second_gradient() -> None:
    model, (example,) = make_net(dtype=torch.float32), make_batches(1, dtype=torch.float32)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**8)
    optimizer, here = SAM(model.parameters(), SGD, rho=0.5, lr=0.1), weights(model)
    seen = []

    def look() -> None:
        assert torch.equal(weights(model), here)
        seen.append([p.grad.clone() for p in model.parameters()])

    moved = copy.deepcopy(model)
    loss_closure(moved, example)()
    norm = sum(p.grad.square().sum() for p in moved.parameters()).sqrt()
    with torch.no_grad():
        for p in moved.parameters():
            p += 0.5 * p.grad / norm
    moved.zero_grad()
    loss_closure(moved, example)()

    def closure() -> None:
        scaler.scale(F.cross_entropy(model(example[0]), example[1])).backward()

    optimizer.step(closure, scaler=scaler, before_descent=look)
    torch.testing.assert_close(seen[0], [p.grad for p in moved.parameters()])


def test_clipping_before_the_ascent_changes_nothing_for_plain_sam() -> None:
    batches = make_batches(6)
    clipped, plain = make_net(), make_net()
    optimizer = make(clipped, kind=SAM)
    for example in batches:
        loss_closure(clipped, example)()
        assert nn.utils.clip_grad_norm_(clipped.parameters(), 1e-3) > 1e-3
        optimizer.first_step(zero_grad=True)
        loss_closure(clipped, example)()
        optimizer.second_step(zero_grad=True)
    train(plain, make(plain, kind=SAM), batches)
    torch.testing.assert_close(weights(clipped), weights(plain), rtol=0, atol=1e-7)  # the 1e-12 beside a norm of 1e-3


# Parameters without a gradient


class Branches(nn.Module):
    """``late`` joins at a given call; ``idle`` never does; ``fixed`` is frozen."""

    def __init__(self, joins: int) -> None:
        super().__init__()
        generator = torch.Generator().manual_seed(0)
        draw = lambda: torch.randn(2, 3, generator=generator, dtype=torch.float64)  # noqa: E731
        self.always, self.late = nn.Parameter(draw()), nn.Parameter(draw())
        self.idle, self.fixed = nn.Parameter(draw()), nn.Parameter(draw(), requires_grad=False)
        self.left = joins

    def forward(self, x: Tensor) -> Tensor:
        self.left -= 1
        w = self.always + self.fixed
        return torch.tanh(x @ (w + self.late if self.left < 0 else w).T)


@pytest.mark.usefixtures("unset_memory_is_nan")
@pytest.mark.parametrize("base", sorted(BASES.keys() - {"fused dampening"}))  # torch's own cannot take one late
@pytest.mark.parametrize("joins", [0, 4, 6])  # calls, of which there are two a step
@pytest.mark.parametrize("sigma", [0.0, 0.5, 1.0])
def test_parameters_without_a_gradient_wait_for_their_first(base: str, joins: int, sigma: float) -> None:
    kind, settings = BASES[base]
    batches = make_batches(6)
    model, reference = Branches(joins), Branches(joins)
    idle, fixed = model.idle.clone(), model.fixed.clone()
    settings = {k: v for k, v in settings.items() if k != "fused"}
    run_loop(
        PlainLoop(reference.parameters(), kind(reference.parameters(), **settings), rho=0.1, sigma=sigma, lmbda=0.6),
        reference,
        batches,
    )
    train(model, make(model, base, sigma=sigma, lmbda=0.6), batches)
    torch.testing.assert_close(weights(model), weights(reference), **CLOSE)
    assert torch.equal(model.idle, idle)
    assert torch.equal(model.fixed, fixed)
    assert not torch.equal(model.late, Branches(0).late)


def test_a_parameter_may_go_without_between_two_passes_and_steps() -> None:
    class Alternating(nn.Module):
        """One branch in odd calls, the other in even ones."""

        def __init__(self) -> None:
            super().__init__()
            self.a, self.b = nn.Linear(3, 2).double(), nn.Linear(3, 2).double()
            self.calls = 0

        def forward(self, x: Tensor) -> Tensor:
            self.calls += 1
            return torch.tanh((self.a, self.b)[self.calls // 3 % 2](x))

    torch.manual_seed(0)
    model = Alternating()
    reference = copy.deepcopy(model)
    batches = make_batches(9)
    base = Adam(reference.parameters(), lr=0.02)
    run_loop(PlainLoop(reference.parameters(), base, rho=0.1, sigma=1.0, lmbda=0.9), reference, batches)
    train(model, make(model, "adam"), batches)
    torch.testing.assert_close(weights(model), weights(reference), **CLOSE)


def test_a_step_without_any_gradient_moves_nothing() -> None:
    model = make_net()
    optimizer, before = make(model), weights(model)
    optimizer.step(lambda: None)
    assert torch.equal(weights(model), before)
    train(model, optimizer, make_batches(1))
    assert not torch.equal(weights(model), before)


class Words(nn.Module):
    def __init__(self, *, sparse: bool) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.table = nn.Embedding(12, 2, sparse=sparse, dtype=torch.float64)

    def forward(self, x: Tensor) -> Tensor:
        return torch.tanh(self.table(x)).sum(1)


WORDS = [
    (torch.randint(0, 12, (8, 3), generator=torch.Generator().manual_seed(i)), torch.arange(8) % 2) for i in range(6)
]


@pytest.mark.parametrize("sigma", [0.0, 0.5, 1.0])
@pytest.mark.parametrize("settings", [{"lr": 0.1}, {"lr": 0.1, "momentum": 0.9}, {"lr": 0.1, "foreach": False}])
def test_sparse_gradients_train_as_dense_ones_do(sigma: float, settings: dict[str, Any]) -> None:
    sparse, dense = Words(sparse=True), Words(sparse=False)
    for model in (sparse, dense):
        train(model, FriendlySAM(model.parameters(), SGD, rho=0.1, sigma=sigma, lmbda=0.6, **settings), WORDS)
    torch.testing.assert_close(weights(sparse), weights(dense), **CLOSE)


@pytest.mark.parametrize("sigma", [0.0, 1.0])
def test_an_optimiser_for_sparse_gradients_gets_them(sigma: float) -> None:
    model, reference = Words(sparse=True), Words(sparse=True)
    base = SparseAdam(reference.parameters(), lr=0.05)
    run_loop(PlainLoop(reference.parameters(), base, rho=0.1, sigma=sigma, lmbda=0.6), reference, WORDS)
    optimizer = FriendlySAM(model.parameters(), SparseAdam, rho=0.1, sigma=sigma, lmbda=0.6, lr=0.05)
    train(model, optimizer, WORDS)
    torch.testing.assert_close(weights(model), weights(reference), **CLOSE)


@pytest.mark.parametrize("bad_pass", [1, 2])
def test_a_bad_sparse_gradient_skips_the_step(bad_pass: int) -> None:
    model = Words(sparse=True)
    optimizer = FriendlySAM(model.parameters(), SparseAdam, lr=0.05)
    train(model, optimizer, WORDS[:3])
    before = snapshot(model, optimizer)
    calls = 0

    def closure() -> None:
        nonlocal calls
        calls += 1
        loss = F.cross_entropy(model(WORDS[4][0]), WORDS[4][1])
        (loss * float("nan") if calls == bad_pass else loss).backward()

    optimizer.step(closure)
    assert identical(before, snapshot(model, optimizer))


@pytest.mark.parametrize("base", ["momentum", "fused momentum"])
def test_a_gradient_may_lie_otherwise_than_its_weight(base: str) -> None:
    """Someone may set it; torch's fused kernels on the CPU go by memory, whatever the strides."""
    generator = torch.Generator().manual_seed(0)
    gradients = [torch.randn(3, 2, generator=generator, dtype=torch.float64).t() for _ in range(4)]
    average = {}
    for lie in ("otherwise", "alike"):
        w = nn.Parameter(torch.ones(2, 3, dtype=torch.float64))
        kind, settings = BASES[base]
        optimizer = FriendlySAM([w], kind, **settings)
        for g in gradients:
            w.grad = g.clone() if lie == "otherwise" else g.contiguous()
            assert w.grad.is_contiguous() == (lie == "alike")
            optimizer.first_step()
            w.grad = g.contiguous()
            optimizer.second_step()
        average[lie] = optimizer.average[w].clone()
    torch.testing.assert_close(average["otherwise"], average["alike"], **CLOSE)


def test_channels_last_weights() -> None:
    torch.manual_seed(0)
    plain = nn.Sequential(nn.Conv2d(3, 4, 3), nn.Tanh(), nn.Conv2d(4, 2, 3)).double()
    moved = copy.deepcopy(plain).to(memory_format=torch.channels_last)
    x = torch.randn(4, 3, 8, 8, dtype=torch.float64)
    for model, own in ((plain, x), (moved, x.contiguous(memory_format=torch.channels_last))):
        optimizer = make(model, "fused momentum")
        for _ in range(4):
            optimizer.step(lambda model=model, own=own: model(own).square().mean().backward())
    torch.testing.assert_close(weights(moved), weights(plain), **CLOSE)


# The closure


def test_optimisers_that_evaluate_as_often_as_they_like_are_refused() -> None:
    with pytest.raises(HoldfastError, match="LBFGS evaluates the loss as often as it likes .* such as SGD or AdamW"):
        SAM(make_net().parameters(), LBFGS, lr=0.1)


def test_a_step_without_a_closure_is_refused_with_the_remedy() -> None:
    with pytest.raises(HoldfastError, match=r"needs a closure.*first_step\(\) and second_step\(\)"):
        make(make_net()).step()


def test_two_first_steps_in_a_row_are_refused() -> None:
    model, (example,) = make_net(), make_batches(1)
    optimizer = make(model)
    loss_closure(model, example)()
    optimizer.first_step()
    with pytest.raises(HoldfastError, match="first_step was called twice; call second_step in between"):
        optimizer.first_step()


@pytest.mark.parametrize("base", ["momentum", "fused adamw"])
@pytest.mark.parametrize("bad_pass", [1, 2])
def test_a_closure_that_raises_leaves_everything_as_before_the_step(base: str, bad_pass: int) -> None:
    batches = make_batches(6)
    model, plain = make_net(), make_net()
    optimizer = make(model, base)
    train(model, optimizer, batches[:3])
    before = snapshot(model, optimizer)
    calls = 0

    def closure() -> None:
        nonlocal calls
        calls += 1
        loss_closure(model, batches[5])()
        if calls == bad_pass:
            raise KeyError("no such picture")

    for _ in range(2):
        calls = 0
        with pytest.raises(KeyError, match="no such picture"):
            optimizer.step(closure)
        assert identical(before, snapshot(model, optimizer))
    train(model, optimizer, batches[3:])
    train(plain, make(plain, base), batches)
    assert torch.equal(weights(model), weights(plain))


def test_the_closure_runs_twice_with_gradients_cleared_and_enabled() -> None:
    model, (example,) = make_net(), make_batches(1)
    seen = []

    def closure() -> Tensor:
        seen.append((torch.is_grad_enabled(), all(p.grad is None for p in model.parameters())))
        return loss_closure(model, example)()

    loss_closure(model, example)()
    with torch.no_grad():
        make(model).step(closure)
    assert seen == [(True, True)] * 2


# Schedules

SCHEDULES: dict[str, Callable[[Any], Any]] = {
    "step": lambda o: lr_scheduler.StepLR(o, 2, gamma=0.3),
    "cosine": lambda o: lr_scheduler.CosineAnnealingLR(o, 8),
    "one cycle": lambda o: lr_scheduler.OneCycleLR(o, max_lr=0.3, total_steps=8, cycle_momentum=True),
    "plateau": lambda o: lr_scheduler.ReduceLROnPlateau(o, patience=0, factor=0.5),
    "warm-up": lambda o: lr_scheduler.SequentialLR(
        o, [lr_scheduler.LinearLR(o, 0.1, total_iters=3), lr_scheduler.ExponentialLR(o, 0.8)], milestones=[3]
    ),
}


@pytest.mark.parametrize("schedule", SCHEDULES)
@pytest.mark.parametrize("base", ["momentum", "fused momentum", "adam"])
@pytest.mark.parametrize("halves", [False, True])
def test_schedulers_drive_the_base_optimiser_without_a_warning(schedule: str, base: str, halves: bool) -> None:
    """With rho = 0 the training must be that of the base optimiser under the same scheduler."""
    kind, settings = BASES[base]
    batches = make_batches(7)
    model, plain = make_net(), make_net()
    optimizer, reference = make(model, base, rho=0.0), kind(plain.parameters(), **settings)
    rates: list[list[Any]] = [[], []]
    schedulers = SCHEDULES[schedule](optimizer), SCHEDULES[schedule](reference)
    for example in batches:
        if halves:
            loss_closure(model, example)()
            optimizer.first_step(zero_grad=True)
            loss_closure(model, example)()
            optimizer.second_step(zero_grad=True)
        else:
            train(model, optimizer, [example])
        train(plain, reference, [example])
        for scheduler, own, o in zip(schedulers, rates, (optimizer, reference), strict=True):
            scheduler.step(*([1.0] if schedule == "plateau" else []))
            own.append([o.param_groups[0].get(key) for key in ("lr", "momentum", "betas")])
    assert rates[0] == rates[1]
    assert len({rate for rate, *_ in rates[0]}) > 2
    assert torch.equal(weights(model), weights(plain))


@pytest.mark.parametrize("as_tensor", [False, True])
def test_the_radius_follows_a_schedule_written_into_the_groups(as_tensor: bool) -> None:
    batches, radii = make_batches(6), [0.0, 0.05, 0.1, 0.2, 0.4, 0.1]
    model, reference = make_net(), make_net()
    loop = PlainLoop(reference.parameters(), SGD(reference.parameters(), lr=0.1), rho=0.0)
    start = torch.tensor(0.7, dtype=torch.float64) if as_tensor else 0.7
    optimizer = SAM(model.parameters(), SGD, rho=start, lr=0.1)
    for example, rho in zip(batches, radii, strict=True):
        if as_tensor:
            optimizer.param_groups[0]["rho"].fill_(rho)
        else:
            optimizer.param_groups[0]["rho"] = rho
        loop.rho = rho
        loop.step(loss_closure(reference, example))
        train(model, optimizer, [example])
    torch.testing.assert_close(weights(model), weights(reference), **CLOSE)
