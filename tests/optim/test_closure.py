"""The closure: when and how it runs, what is refused, and what is left when it raises."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor
from torch.optim import LBFGS, SGD, Adadelta

from holdfast.errors import HoldfastError
from holdfast.optim import SAM
from tests.optim.problems import (
    CLOSE,
    identical,
    loss_closure,
    make_batches,
    make_net,
    make_optimizer,
    snapshot,
    train,
    weights,
)


def test_optimisers_that_evaluate_as_often_as_they_like_are_refused() -> None:
    with pytest.raises(HoldfastError, match="LBFGS evaluates the loss as often as it likes .* such as SGD or AdamW"):
        SAM(make_net().parameters(), LBFGS, lr=0.1)


def test_an_optimiser_whose_own_setting_has_the_name_of_the_radius_is_refused() -> None:
    """Adadelta's rho is the memory of its averages; with a radius in its place it would train, and otherwise."""
    with pytest.raises(HoldfastError, match="Adadelta has a setting rho of its own, .* such as SGD or AdamW"):
        SAM(make_net().parameters(), Adadelta)


def test_an_optimiser_that_is_no_class_is_refused() -> None:
    model = make_net()
    with pytest.raises(HoldfastError, match="must be a class such as torch.optim.SGD, got SGD"):
        SAM(model.parameters(), SGD(model.parameters(), lr=0.1))  # type: ignore[arg-type]


def test_a_step_without_a_closure_is_refused_with_the_remedy() -> None:
    with pytest.raises(HoldfastError, match=r"needs a closure.*first_step\(\) and second_step\(\)"):
        make_optimizer(make_net()).step()


def test_two_first_steps_in_a_row_are_refused() -> None:
    model, (example,) = make_net(), make_batches(1)
    optimizer = make_optimizer(model)
    loss_closure(model, example)()
    optimizer.first_step()
    with pytest.raises(HoldfastError, match="first_step was called twice; call second_step in between"):
        optimizer.first_step()


@pytest.mark.parametrize("base", ["momentum", "fused adamw"])
@pytest.mark.parametrize("bad_pass", [1, 2])
def test_a_closure_that_raises_leaves_everything_as_before_the_step(base: str, bad_pass: int) -> None:
    batches = make_batches(6)
    model, plain = make_net(), make_net()
    optimizer = make_optimizer(model, base)
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
    train(plain, make_optimizer(plain, base), batches)
    assert torch.equal(weights(model), weights(plain))


def test_a_clip_that_raises_ends_the_step_at_the_unmoved_weights() -> None:
    batches = make_batches(4)
    model, plain = make_net(), make_net()
    optimizer = make_optimizer(model)
    train(model, optimizer, batches[:2])
    before = snapshot(model, optimizer)

    def clip() -> None:
        raise KeyError("no such norm")

    loss_closure(model, batches[2])()
    optimizer.first_step(zero_grad=True)
    loss_closure(model, batches[2])()
    with pytest.raises(KeyError, match="no such norm"):
        optimizer.second_step(zero_grad=True, before_descent=clip)
    assert identical(before, snapshot(model, optimizer))
    train(model, optimizer, batches[2:])
    train(plain, make_optimizer(plain), batches)
    assert torch.equal(weights(model), weights(plain))


def test_the_closure_runs_twice_with_gradients_cleared_and_enabled() -> None:
    model, (example,) = make_net(), make_batches(1)
    seen = []

    def closure() -> Tensor:
        seen.append((torch.is_grad_enabled(), all(p.grad is None for p in model.parameters())))
        return loss_closure(model, example)()

    optimizer = make_optimizer(model)
    optimizer.step(loss_closure(model, example))
    assert all(p.grad is not None for p in model.parameters())
    with torch.no_grad():
        optimizer.step(closure)
    assert seen == [(True, True)] * 2


@pytest.mark.filterwarnings("ignore:The .grad attribute:UserWarning")  # dynamo looks at all there is
@pytest.mark.parametrize("halves", [False, True])
def test_a_function_that_steps_may_be_compiled(halves: bool) -> None:
    """The model in it is; the step itself is left as it is."""
    batches, (model, plain) = make_batches(4), (make_net(), make_net())
    optimizer = make_optimizer(model)

    @torch.compile(backend="eager")
    def in_halves(example: tuple[Tensor, Tensor]) -> None:
        loss_closure(model, example)()
        optimizer.first_step(zero_grad=True)
        loss_closure(model, example)()
        optimizer.second_step(zero_grad=True)

    @torch.compile(backend="eager")
    def at_once(example: tuple[Tensor, Tensor]) -> None:
        optimizer.step(loss_closure(model, example))

    for example in batches:
        (in_halves if halves else at_once)(example)
        optimizer.zero_grad()
    train(plain, make_optimizer(plain), batches)
    torch.testing.assert_close(weights(model), weights(plain), **CLOSE)
