"""A step with a gradient that is not finite never happened: the training is that without it."""

from __future__ import annotations

from collections.abc import Callable
from itertools import product
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from tests.optim.problems import (
    BASES,
    Example,
    identical,
    loss_closure,
    make_batches,
    make_net,
    make_optimizer,
    snapshot,
    train,
    weights,
)


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
    optimizer, reference = make_optimizer(model, base), make_optimizer(plain, base)
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
    optimizer = make_optimizer(model, base)
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
    optimizer = make_optimizer(model, base)
    train(model, optimizer, batches[:2])
    before = snapshot(model, optimizer)
    closure = spoiled_closure(model, batches[2], bad_pass=2, value=float("inf"))
    optimizer.step(closure, before_descent=lambda: clip(model.parameters(), 1.0))
    assert identical(before, snapshot(model, optimizer))


@pytest.mark.parametrize("base", ["momentum", "fused momentum"])
def test_a_gradient_whose_norm_overflows_is_bad_in_both_passes(base: str) -> None:
    """Processes that climb alone must all see it, and they share the second gradient only."""
    model = make_net(dtype=torch.float32)
    optimizer = make_optimizer(model, base)
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
        train(m, make_optimizer(m, base, skip_nonfinite=skip), batches)
    assert torch.equal(weights(checked), weights(unchecked))
    optimizer = make_optimizer(model, base, skip_nonfinite=False)
    optimizer.step(spoiled_closure(model, batches[0], bad_pass=2, value=float("nan")))
    assert weights(model).isnan().any()


def test_an_ascent_taken_back_leaves_nothing_of_its_gradient() -> None:
    """Not its verdict either: the next step, whose first pass has no gradient, is an ordinary descent."""
    model, plain, (example,) = make_net(), make_net(), make_batches(1)
    optimizer = make_optimizer(model)
    spoiled_closure(model, example, bad_pass=1, value=torch.nan)()
    optimizer.first_step(zero_grad=True)
    optimizer.restore()
    optimizer.first_step()
    loss_closure(model, example)()
    optimizer.second_step()
    kind, settings = BASES["momentum"]
    train(plain, kind(plain.parameters(), **settings), [example])
    assert torch.equal(weights(model), weights(plain))


@pytest.mark.parametrize("base", ["momentum", "fused momentum"])
def test_skipped_steps_are_counted(base: str) -> None:
    """A loss may stay finite while its gradient is none: nothing else would show that the training stands still."""
    model, batches = make_net(), make_batches(5)
    optimizer = make_optimizer(model, base)
    train(model, optimizer, batches[:2])
    assert optimizer.skipped == 0
    for x, y in batches[2:]:
        train(model, optimizer, [(x * torch.nan, y)])
    assert optimizer.skipped == 3
    train(model, optimizer, batches[:1])
    assert optimizer.skipped == 3
