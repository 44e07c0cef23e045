"""On a CUDA device: no step waits for it, bad steps leave no trace there, and memory stays within bounds."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.optim import SGD, AdamW

from holdfast.optim import ASAM, SAM, FisherSAM, FriendlySAM
from tests.optim.problems import identical, make_batches, make_net, train, weights

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]

BASES: dict[str, tuple[Any, dict[str, Any]]] = {
    "sgd": (SGD, {"lr": 0.1, "fused": True}),
    "momentum": (SGD, {"lr": 0.1, "momentum": 0.9, "weight_decay": 0.01, "fused": True}),
    "adamw": (AdamW, {"lr": 0.02, "fused": True}),
}


@pytest.fixture
def waiting_is_an_error() -> Iterator[None]:
    yield
    torch.cuda.set_sync_debug_mode("default")


def on_gpu(seed: int = 0) -> nn.Sequential:
    return make_net(seed=seed, dtype=torch.float32).cuda()


def batches(n: int) -> list[Any]:
    return [(x.cuda(), y.cuda()) for x, y in make_batches(n, dtype=torch.float32)]


@pytest.mark.usefixtures("waiting_is_an_error")
@pytest.mark.filterwarnings("ignore:Synchronization debug mode is a prototype")
@pytest.mark.parametrize("base", BASES)
@pytest.mark.parametrize("kind", [SAM, ASAM, FisherSAM, FriendlySAM])
@pytest.mark.parametrize("scaled", [False, True])
def test_no_step_waits_for_the_device(kind: type[SAM], base: str, scaled: bool) -> None:
    descent, settings = BASES[base]
    model = on_gpu()
    optimizer = kind(model.parameters(), descent, rho=torch.tensor(0.1, device="cuda"), **settings)
    scaler = torch.amp.GradScaler("cuda", enabled=scaled)

    for i, (x, y) in enumerate(batches(4)):

        def closure(x: Tensor = x, y: Tensor = y) -> None:
            scaler.scale(F.cross_entropy(model(x), y)).backward()

        if i == 1:
            torch.cuda.set_sync_debug_mode("error")
        optimizer.step(closure, scaler=scaler)
        scaler.update()


@pytest.mark.parametrize("base", BASES)
@pytest.mark.parametrize("bad_pass", [1, 2])
@pytest.mark.parametrize("when", [0, 2])
def test_a_step_with_a_bad_gradient_never_happened(base: str, bad_pass: int, when: int) -> None:
    descent, settings = BASES[base]
    torch.use_deterministic_algorithms(True)  # fresh memory holds NaN
    try:
        model, plain = on_gpu(), on_gpu()
        optimizer, reference = (FriendlySAM(m.parameters(), descent, **settings) for m in (model, plain))
        train(model, optimizer, batches(5)[:when])
        calls = 0

        def closure() -> None:
            nonlocal calls
            calls += 1
            x, y = batches(5)[4]
            F.cross_entropy(model(x), y).backward()
            if calls == bad_pass:
                model[0].weight.grad[0, 0] = float("nan")

        optimizer.step(closure)
        train(model, optimizer, batches(5)[when:])
        train(plain, reference, batches(5))
    finally:
        torch.use_deterministic_algorithms(False)
    assert torch.equal(weights(model), weights(plain))
    assert identical(optimizer.state_dict(), reference.state_dict())


@pytest.mark.parametrize("base", BASES)
@pytest.mark.parametrize("when", [0, 1, 3])
def test_resumes_bit_for_bit(base: str, when: int) -> None:
    descent, settings = BASES[base]
    whole, first, second = on_gpu(), on_gpu(), on_gpu(7)
    reference, before, after = (FriendlySAM(m.parameters(), descent, **settings) for m in (whole, first, second))
    train(whole, reference, batches(5))
    train(first, before, batches(5)[:when])
    second.load_state_dict(first.state_dict())
    after.load_state_dict(before.state_dict())
    train(second, after, batches(5)[when:])
    assert torch.equal(weights(second), weights(whole))
    assert identical(after.state_dict(), reference.state_dict())


def test_captured_and_eager_are_the_same() -> None:
    """Both halves of a step in one graph, with the radius changed between replays."""
    ends = []
    for captured in (False, True):
        model = on_gpu()
        rho = torch.tensor(0.1, device="cuda")
        optimizer = FriendlySAM(model.parameters(), SGD, rho=rho, lr=0.1, momentum=0.9, fused=True)
        x, y = batches(1)[0]

        def closure(model: nn.Module = model, x: Tensor = x, y: Tensor = y) -> None:
            F.cross_entropy(model(x), y).backward()

        stream, graph = torch.cuda.Stream(), torch.cuda.CUDAGraph()
        with torch.cuda.stream(stream):
            for _ in range(3):
                optimizer.step(closure)
            if captured:
                with torch.cuda.graph(graph, stream=stream):
                    optimizer.step(closure)
            for radius in (0.1, 0.3, 0.0, 0.2):
                rho.fill_(radius)
                if captured:
                    graph.replay()
                else:
                    optimizer.step(closure)
        torch.cuda.synchronize()
        ends.append(weights(model))
    torch.testing.assert_close(ends[1], ends[0], rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("kind", [SAM, FriendlySAM])
def test_weights_of_several_types(kind: type[SAM]) -> None:
    types = (torch.float32, torch.float64, torch.bfloat16)
    params = [nn.Parameter(torch.linspace(-1, 1, 6, device="cuda", dtype=t)) for t in types]
    optimizer = kind(params, SGD, rho=0.05, lr=0.05)
    for _ in range(20):
        loss = optimizer.step(lambda: sum((p.double() ** 4).sum() for p in params).backward())
    assert loss is None
    ends = [p.detach().double() for p in params]
    torch.testing.assert_close(ends[0], ends[1], rtol=0, atol=1e-5)
    torch.testing.assert_close(ends[2], ends[1], rtol=0, atol=2e-2)


@pytest.mark.parametrize(("kind", "copies"), [(SAM, 1), (FriendlySAM, 2)])
def test_what_a_step_leaves_behind_is_saved_weights_and_averages(kind: type[SAM], copies: int) -> None:
    params = [nn.Parameter(torch.randn(1024, 1024, device="cuda")) for _ in range(8)]
    size = sum(p.numel() * p.element_size() for p in params)
    optimizer = kind(params, SGD, lr=0.1, fused=True)
    before = torch.cuda.memory_allocated()
    for _ in range(3):
        optimizer.step(lambda: sum((p**2).sum() for p in params).backward())
    optimizer.zero_grad()
    assert torch.cuda.memory_allocated() - before <= 1.01 * copies * size


KINDS: dict[str, tuple[type[SAM], dict[str, Any]]] = {
    "sam": (SAM, {}),
    "asam": (ASAM, {}),
    "fisher-sam": (FisherSAM, {}),
    "friendly-sam": (FriendlySAM, {"sigma": 0.7}),
}


@pytest.mark.parametrize("base", BASES)
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("checked", [True, False])
def test_replayed_halves_are_the_plain_ones(kind: str, base: str, checked: bool) -> None:
    """Bit for bit, with schedules of learning rate and radius and a restart in between."""
    descent, settings = BASES[base]
    family, own = KINDS[kind]
    ends, states = [], []
    for capture in (False, True):
        model = on_gpu()
        optimizer = family(
            model.parameters(), descent, skip_nonfinite=checked, capture=capture, **own, **{**settings, "lr": 0.1}
        )
        schedule = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.95)
        for i, batch in enumerate(batches(40)):
            rho = 0.1 / (1 + i / 4)
            for group in optimizer.param_groups:
                group["rho"] = group["rho"].fill_(rho) if isinstance(group["rho"], Tensor) else rho
            train(model, optimizer, [batch])
            schedule.step()
            if i == 19:
                optimizer.load_state_dict(optimizer.state_dict())
        assert (optimizer._recordings is not None) is capture
        if capture:
            assert any(optimizer._recordings._known.values()), "nothing was recorded, so nothing was tested"
        ends.append(weights(model))
        states.append(optimizer.state_dict()["state"])
    torch.testing.assert_close(ends[1], ends[0], rtol=1e-6, atol=1e-7)
    for number, state in states[0].items():
        for name, value in state.items():
            torch.testing.assert_close(states[1][number][name], value, rtol=1e-5, atol=1e-7)


def test_gradients_that_wander_are_followed() -> None:
    """Memory of another address each step: nothing is replayed on stale places."""
    ends = []
    for capture in (False, True):
        model, kept = on_gpu(), []
        optimizer = FriendlySAM(model.parameters(), SGD, lr=0.1, momentum=0.9, fused=True, capture=capture)
        for x, y in batches(10):

            def closure(x: Tensor = x, y: Tensor = y, model: nn.Module = model, kept: list[Any] = kept) -> None:
                F.cross_entropy(model(x), y).backward()
                kept.extend(p.grad for p in model.parameters())  # so that none of it is free again

            optimizer.step(closure)
        ends.append(weights(model))
    assert torch.equal(ends[0], ends[1])


@pytest.mark.parametrize("bad_pass", [1, 2])
def test_a_bad_step_is_skipped_in_a_replay_too(bad_pass: int) -> None:
    model, plain = on_gpu(), on_gpu()
    optimizer, reference = (
        FriendlySAM(m.parameters(), SGD, lr=0.1, momentum=0.9, fused=True, capture=True) for m in (model, plain)
    )
    train(model, optimizer, batches(6))
    train(plain, reference, batches(6))
    calls = 0

    def closure() -> None:
        nonlocal calls
        calls += 1
        x, y = batches(6)[5]
        F.cross_entropy(model(x), y).backward()
        if calls == bad_pass:
            model[0].weight.grad[0, 0] = float("inf")

    optimizer.step(closure)
    assert torch.equal(weights(model), weights(plain))
    assert identical(optimizer.state_dict()["state"], reference.state_dict()["state"])


def test_replays_take_no_more_memory_than_plain_steps() -> None:
    params = [nn.Parameter(torch.randn(1024, 1024, device="cuda")) for _ in range(8)]
    size = sum(p.numel() * p.element_size() for p in params)
    optimizer = FriendlySAM(params, SGD, lr=0.1, fused=True, capture=True, skip_nonfinite=False)
    before = torch.cuda.memory_allocated()
    for _ in range(6):
        optimizer.step(lambda: sum((p**2).sum() for p in params).backward())
    optimizer.zero_grad()
    assert torch.cuda.memory_allocated() - before <= 1.01 * 2 * size
