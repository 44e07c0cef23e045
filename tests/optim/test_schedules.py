"""Schedules of the learning rate and of the radius."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.optim import SGD, lr_scheduler

from holdfast.optim import SAM
from tests.optim.problems import (
    BASES,
    CLOSE,
    PlainLoop,
    loss_closure,
    make_batches,
    make_net,
    make_optimizer,
    train,
    weights,
)

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
    optimizer, reference = make_optimizer(model, base, rho=0.0), kind(plain.parameters(), **settings)
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
