"""Small batches in the closure are one large batch, and gradients can be clipped before the descent."""

from __future__ import annotations

import copy
import warnings
from contextlib import nullcontext
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.optim import SGD
from torch.utils.data import DataLoader

from holdfast.errors import HoldfastError
from holdfast.optim import ASAM, SAM, FisherSAM, FriendlySAM
from tests.optim.problems import (
    CLOSE,
    Example,
    PlainLoop,
    loss_closure,
    make_batches,
    make_net,
    make_optimizer,
    run_loop,
    train,
    weights,
)


@pytest.mark.parametrize("base", ["momentum", "fused adamw"])
@pytest.mark.parametrize("kind", [SAM, ASAM, FisherSAM, FriendlySAM])
@pytest.mark.parametrize("parts", [2, 4])
def test_small_batches_in_the_closure_are_one_large_batch(base: str, kind: type[SAM], parts: int) -> None:
    batches = make_batches(6)
    whole, split = make_net(), make_net()
    train(whole, make_optimizer(whole, base, kind), batches)
    optimizer = make_optimizer(split, base, kind)
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
    optimizer = make_optimizer(model, base)

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
    optimizer = make_optimizer(clipped, kind=SAM)
    for example in batches:
        loss_closure(clipped, example)()
        assert nn.utils.clip_grad_norm_(clipped.parameters(), 1e-3) > 1e-3
        optimizer.first_step(zero_grad=True)
        loss_closure(clipped, example)()
        optimizer.second_step(zero_grad=True)
    train(plain, make_optimizer(plain, kind=SAM), batches)
    torch.testing.assert_close(weights(clipped), weights(plain), rtol=0, atol=1e-7)  # the 1e-12 beside a norm of 1e-3


@pytest.mark.dev
@pytest.mark.slow  # Lightning is slow to import
@pytest.mark.filterwarnings("ignore")
def test_lightning_cannot_accumulate_in_silence() -> None:
    """Its closure is the last batch's; with one batch per step, all is well."""
    lightning = pytest.importorskip("lightning")

    class Module(lightning.LightningModule):  # type: ignore[misc, name-defined]
        def __init__(self) -> None:
            super().__init__()
            self.net = make_net()

        def training_step(self, batch: Example, _: int) -> Tensor:
            return F.cross_entropy(self.net(batch[0]), batch[1])

        def configure_optimizers(self) -> SAM:
            return make_optimizer(self.net)

    quiet = {
        "logger": False,
        "enable_progress_bar": False,
        "enable_model_summary": False,
        "enable_checkpointing": False,
    }
    for parts in (1, 2):
        trainer = lightning.Trainer(max_epochs=1, accelerator="cpu", accumulate_grad_batches=parts, **quiet)
        with pytest.raises(HoldfastError, match="accumulate_grad_batches=1") if parts > 1 else nullcontext():
            trainer.fit(Module(), DataLoader(make_batches(4), batch_size=None))  # type: ignore[arg-type]


def test_gradients_added_up_before_the_step_are_not_lost_in_silence() -> None:
    """As with Lightning's accumulate_grad_batches, whose closure is the last part's."""
    model, batches = make_net(), make_batches(4)
    optimizer = make_optimizer(model)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for example in batches[:2]:  # what a step leaves is no reason to warn
            optimizer.step(loss_closure(model, example))
        optimizer.zero_grad()
        optimizer.step(loss_closure(model, batches[2]))
        optimizer.zero_grad()
    loss_closure(model, batches[2])()
    before = weights(model)
    with pytest.raises(HoldfastError, match="accumulate gradients, do so inside the closure"):
        optimizer.step(loss_closure(model, batches[3]))
    assert torch.equal(weights(model), before)
    optimizer.zero_grad()
    optimizer.step(loss_closure(model, batches[3]))
    assert not torch.equal(weights(model), before)
