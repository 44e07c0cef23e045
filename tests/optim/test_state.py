"""Saving, loading, copying, hooks and groups: whatever is brought back goes on as if nothing had happened."""

from __future__ import annotations

import copy
import io
import pickle
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.optim import SGD, Adam, AdamW, Optimizer, lr_scheduler

from holdfast.errors import HoldfastError
from holdfast.optim import ASAM, SAM, FisherSAM, FriendlySAM
from tests.optim.problems import identical, loss_closure, make_batches, make_net, train, weights

STEPS = 6
TRAININGS: dict[str, tuple[type[SAM], Any, dict[str, Any]]] = {
    "sam, momentum": (SAM, SGD, {"lr": 0.1, "momentum": 0.9, "weight_decay": 0.01}),
    "sam, fused momentum": (SAM, SGD, {"lr": 0.1, "momentum": 0.9, "fused": True}),
    "asam, adam": (ASAM, Adam, {"lr": 0.02}),
    "fisher, adam": (FisherSAM, Adam, {"lr": 0.02, "fused": True}),
    "friendly, momentum": (FriendlySAM, SGD, {"lr": 0.1, "momentum": 0.9, "nesterov": True}),
    "friendly, no momentum": (FriendlySAM, SGD, {"lr": 0.1}),
    "friendly, adamw": (FriendlySAM, AdamW, {"lr": 0.02, "sigma": 0.5, "lmbda": 0.6}),
    "friendly, fused adamw": (FriendlySAM, AdamW, {"lr": 0.02, "lmbda": 0.6, "fused": True}),
    "friendly asam": (ASAM, SGD, {"lr": 0.1, "friendly": True, "momentum": 0.9}),
}


def make(training: str, model: nn.Module, **changes: Any) -> SAM:
    kind, base, settings = TRAININGS[training]
    return kind(model.parameters(), base, **{"rho": 0.1, **settings, **changes})


def through_a_file(state: Any) -> Any:
    file = io.BytesIO()
    torch.save(state, file)
    file.seek(0)
    return torch.load(file, weights_only=True)


@pytest.mark.parametrize("training", TRAININGS)
@pytest.mark.parametrize("when", range(STEPS))
def test_resumes_bit_for_bit_after_every_step(training: str, when: int) -> None:
    batches = make_batches(STEPS)
    whole, first, second = (make_net(seed=s) for s in (0, 0, 7))
    reference, before, after = make(training, whole), make(training, first), make(training, second, rho=9.0, lr=7.0)
    train(whole, reference, batches)
    train(first, before, batches[:when])
    saved = through_a_file({"model": first.state_dict(), "optimizer": before.state_dict()})
    second.load_state_dict(saved["model"])
    after.load_state_dict(saved["optimizer"])
    assert identical(after.state_dict(), saved["optimizer"])
    train(second, after, batches[when:])
    assert torch.equal(weights(second), weights(whole))
    assert identical(after.state_dict(), reference.state_dict())


def test_loaded_averages_share_nothing_with_what_was_loaded() -> None:
    batches = make_batches(STEPS)
    one, other = make_net(), make_net()
    first, second = make("friendly, no momentum", one), make("friendly, no momentum", other)
    train(one, first, batches[:3])
    kept = copy.deepcopy(first.state_dict())
    second.load_state_dict(first.state_dict())
    train(other, second, batches[3:])
    assert identical(first.state_dict(), kept)
    assert not identical(second.state_dict(), kept)


def test_loading_goes_back_to_a_fresh_optimiser_too() -> None:
    batches = make_batches(STEPS)
    model, plain = make_net(), make_net()
    optimizer = make("friendly, momentum", model)
    fresh, start = copy.deepcopy(optimizer.state_dict()), copy.deepcopy(model.state_dict())
    train(model, optimizer, make_batches(3, seed=9))
    optimizer.load_state_dict(fresh)
    model.load_state_dict(start)
    train(model, optimizer, batches)
    train(plain, make("friendly, momentum", plain), batches)
    assert torch.equal(weights(model), weights(plain))


def test_saving_leaves_the_optimiser_alone() -> None:
    model = make_net()
    optimizer = make("friendly, momentum", model)
    train(model, optimizer, make_batches(2))
    state = optimizer.state_dict()
    assert all("ascent_ema" in own for own in state["state"].values())
    assert all(own.keys() == {"momentum_buffer"} for own in optimizer.state.values())
    assert all(own.keys() == {"momentum_buffer"} for own in optimizer.base_optimizer.state_dict()["state"].values())


def test_weights_may_lie_in_memory_otherwise_when_loaded() -> None:
    torch.manual_seed(0)
    plain = nn.Sequential(nn.Conv2d(3, 4, 3), nn.Tanh(), nn.Conv2d(4, 2, 3)).double()
    x = torch.randn(4, 3, 8, 8, dtype=torch.float64)

    def run(model: nn.Module, optimizer: SAM, steps: int) -> None:
        for _ in range(steps):
            optimizer.step(lambda: model(x).square().mean().backward())

    optimizer = FriendlySAM(plain.parameters(), SGD, rho=0.1, lr=0.1)
    run(plain, optimizer, 3)
    moved = copy.deepcopy(plain).to(memory_format=torch.channels_last)
    other = FriendlySAM(moved.parameters(), SGD, rho=0.1, lr=0.1)
    other.load_state_dict(optimizer.state_dict())
    assert all(other.average[p].stride() == p.stride() for p in moved.parameters())
    run(plain, optimizer, 3)
    run(moved, other, 3)
    torch.testing.assert_close(weights(moved), weights(plain), rtol=0, atol=1e-12)


def test_an_average_of_another_shape_is_refused() -> None:
    model = make_net()
    optimizer = make("friendly, no momentum", model)
    train(model, optimizer, make_batches(1))
    state = optimizer.state_dict()
    state["state"][0]["ascent_ema"] = torch.zeros(1)
    with pytest.raises(HoldfastError, match=r"ascent_ema of parameter 0 has shape \(1,\), the parameter \(5, 3\)"):
        optimizer.load_state_dict(state)


def test_the_state_of_a_larger_model_is_refused() -> None:
    model = make_net()
    optimizer = make("friendly, no momentum", model)
    train(model, optimizer, make_batches(1))
    with pytest.raises(HoldfastError, match="ascent_ema of parameter 2, the optimiser 2 parameters; is it another"):
        make("friendly, no momentum", model[0]).load_state_dict(optimizer.state_dict())


def test_plain_sam_reads_the_state_of_its_base_optimiser() -> None:
    """A training without an ascent can go on with one."""
    batches = make_batches(STEPS)
    model, plain = make_net(), make_net()
    base = SGD(plain.parameters(), lr=0.1, momentum=0.9)
    train(plain, base, batches[:3])
    model.load_state_dict(plain.state_dict())
    optimizer = SAM(model.parameters(), SGD, rho=0.0, lr=0.5, momentum=0.1)
    optimizer.load_state_dict(copy.deepcopy(base.state_dict()))
    assert optimizer.param_groups[0]["rho"] == 0.0
    train(model, optimizer, batches[3:])
    train(plain, base, batches[3:])
    assert torch.equal(weights(model), weights(plain))


@pytest.mark.parametrize("act", ["state_dict", "load_state_dict", "copy", "pickle"])
def test_half_a_step_is_neither_saved_nor_loaded_nor_copied(act: str) -> None:
    model, (example,) = make_net(), make_batches(1)
    optimizer = make("friendly, momentum", model)
    state = optimizer.state_dict()
    acts = {
        "state_dict": optimizer.state_dict,
        "load_state_dict": lambda: optimizer.load_state_dict(state),
        "copy": lambda: copy.deepcopy(optimizer),
        "pickle": lambda: pickle.dumps(optimizer),
    }
    loss_closure(model, example)()
    optimizer.first_step()
    with pytest.raises(HoldfastError, match="between first_step and second_step"):
        acts[act]()
    optimizer.restore()
    acts[act]()


@pytest.mark.parametrize("training", TRAININGS)
@pytest.mark.parametrize("way", ["deepcopy", "pickle"])
@pytest.mark.parametrize("scheduled", [False, True])
def test_a_copy_trains_on_its_own_and_alike(training: str, way: str, scheduled: bool) -> None:
    batches = make_batches(STEPS)
    model = make_net()
    optimizer = make(training, model)
    if scheduled:
        lr_scheduler.StepLR(optimizer, 100)
    train(model, optimizer, batches[:3])
    both = [model, optimizer]
    twin, copied = copy.deepcopy(both) if way == "deepcopy" else pickle.loads(pickle.dumps(both))
    train(model, optimizer, batches[3:])
    assert not torch.equal(weights(model), weights(twin))
    train(twin, copied, batches[3:])
    assert torch.equal(weights(model), weights(twin))
    assert identical(optimizer.state_dict(), copied.state_dict())
    assert copied.param_groups is copied.base_optimizer.param_groups
    fused = "_step_supports_amp_scaling"
    assert getattr(copied.base_optimizer, fused, False) == getattr(optimizer.base_optimizer, fused, False)


def test_a_group_added_later_trains_with_its_own_settings() -> None:
    """As if it had been there from the start with nothing to do."""
    batches = make_batches(STEPS)
    model, reference = make_net(), make_net()
    head = list(reference[2].parameters())
    early = FriendlySAM(
        [{"params": list(reference[0].parameters())}, {"params": head, "rho": 0.3, "lr": 0.02, "sigma": 0.5}],
        SGD,
        rho=0.1,
        lr=0.1,
        momentum=0.9,
    )
    late = FriendlySAM(model[0].parameters(), SGD, rho=0.1, lr=0.1, momentum=0.9)
    for m, added in ((model, False), (reference, True)):
        m[2].requires_grad_(added)
    reference[2].requires_grad_(False)
    train(reference, early, batches[:3])
    train(model, late, batches[:3])
    reference[2].requires_grad_(True)
    model[2].requires_grad_(True)
    late.add_param_group({"params": list(model[2].parameters()), "rho": 0.3, "lr": 0.02, "sigma": 0.5})
    assert late.param_groups is late.base_optimizer.param_groups
    assert len(late.param_groups) == 2
    train(reference, early, batches[3:])
    train(model, late, batches[3:])
    assert torch.equal(weights(model), weights(reference))
    assert identical(late.state_dict(), early.state_dict())


def test_a_group_added_later_takes_the_settings_of_the_optimiser() -> None:
    model = make_net()
    optimizer = FriendlySAM(model[0].parameters(), AdamW, rho=0.2, sigma=0.5, lmbda=0.7, lr=0.3)
    optimizer.add_param_group({"params": model[2].parameters()})
    first, second = ({k: v for k, v in group.items() if k != "params"} for group in optimizer.param_groups)
    assert first == second
    assert second["rho"] == 0.2
    assert second["sigma"] == 0.5


def test_names_of_parameters_are_kept() -> None:
    model = make_net()
    optimizer = SAM(model.named_parameters(), SGD, lr=0.1)
    names = [name for name, _ in model.named_parameters()]
    assert optimizer.param_groups[0]["param_names"] == names
    assert optimizer.state_dict()["param_groups"][0]["param_names"] == names


@pytest.mark.parametrize("halves", [False, True])
def test_step_hooks(halves: bool) -> None:
    """Those of the base optimiser run with every descent, those of the ascent around the whole of ``step``."""
    model, batches = make_net(), make_batches(2)
    optimizer, heard = make("friendly, momentum", model), []

    def hear(name: str) -> Any:
        return lambda o, args, kwargs: heard.append((name, type(o)))

    optimizer.register_step_pre_hook(hear("pre"))
    optimizer.register_step_post_hook(hear("post"))
    optimizer.base_optimizer.register_step_pre_hook(hear("base pre"))
    optimizer.base_optimizer.register_step_post_hook(hear("base post"))
    base = [("base pre", SGD), ("base post", SGD)]
    if halves:
        for example in batches:
            loss_closure(model, example)()
            optimizer.first_step(zero_grad=True)
            loss_closure(model, example)()
            optimizer.second_step()
        assert heard == base * 2
    else:
        train(model, optimizer, batches)
        assert heard == [("pre", FriendlySAM), *base, ("post", FriendlySAM)] * 2


def test_a_step_hook_may_change_the_arguments() -> None:
    model, (example,) = make_net(), make_batches(1)
    optimizer, before = make("sam, momentum", model), weights(model)

    def insert(o: SAM, args: Any, kwargs: Any) -> Any:
        return (args[0], loss_closure(model, example)), kwargs

    optimizer.register_step_pre_hook(insert)
    optimizer.step(None)
    assert not torch.equal(weights(model), before)


def test_state_hooks_see_the_whole_state() -> None:
    model, other = make_net(), make_net()
    optimizer, second = make("friendly, momentum", model), make("friendly, momentum", other)
    train(model, optimizer, make_batches(2))
    heard: list[Any] = []
    optimizer.register_state_dict_pre_hook(lambda o: heard.append("pre"))

    def add_note(o: SAM, state: dict[str, Any]) -> dict[str, Any]:
        heard.append(state["state"][0].keys())
        return {**state, "note": "mine"}

    optimizer.register_state_dict_post_hook(add_note)
    state = optimizer.state_dict()
    assert heard == ["pre", {"momentum_buffer", "ascent_ema"}]
    assert state["note"] == "mine"

    def halve(o: SAM, state: dict[str, Any]) -> dict[str, Any]:
        heard.append(state.pop("note"))
        return {**state, "param_groups": [{**group, "rho": 0.5 * group["rho"]} for group in state["param_groups"]]}

    heard.clear()
    second.register_load_state_dict_pre_hook(halve)
    second.register_load_state_dict_post_hook(lambda o: heard.append(o.param_groups[0]["rho"]))
    second.load_state_dict(state)
    assert heard == ["mine", 0.05]
    assert "note" in state


def test_zero_grad_and_repr_are_those_of_any_optimiser() -> None:
    model, (example,) = make_net(), make_batches(1)
    optimizer = make("friendly, momentum", model)
    loss_closure(model, example)()
    optimizer.zero_grad(set_to_none=False)
    assert all(torch.equal(p.grad, torch.zeros_like(p)) for p in model.parameters())
    optimizer.zero_grad()
    assert all(p.grad is None for p in model.parameters())
    assert "rho: 0.1" in repr(optimizer)
    assert "momentum: 0.9" in repr(optimizer)


def test_a_tensor_for_a_radius_is_saved_and_loaded() -> None:
    model, other = make_net(), make_net()
    one, two = (SAM(m.parameters(), SGD, rho=torch.tensor(r), lr=0.1) for m, r in ((model, 0.25), (other, 0.5)))
    two.load_state_dict(through_a_file(one.state_dict()))
    rho: Tensor = two.param_groups[0]["rho"]
    assert rho == 0.25
    rho.fill_(1.0)
    assert one.param_groups[0]["rho"] == 0.25


def test_capture_wants_a_gpu() -> None:
    with pytest.raises(HoldfastError, match=r"one CUDA device, found cpu; move the model there first"):
        SAM([nn.Parameter(torch.ones(2))], SGD, lr=0.1, fused=True, capture=True)


@pytest.mark.parametrize("base", [SGD, AdamW])
def test_a_fused_optimiser_trains_on_with_the_state_of_a_plain_one(base: type[Optimizer]) -> None:
    settings: dict[str, Any] = {"momentum": 0.9} if base is SGD else {}
    model, batches = make_net(), make_batches(4)
    plain = SAM(model.parameters(), base, lr=0.1, **settings)
    train(model, plain, batches[:2])
    other = copy.deepcopy(model)
    fused = SAM(other.parameters(), base, lr=0.1, fused=True, **settings)
    fused.load_state_dict(copy.deepcopy(plain.state_dict()))
    train(model, plain, batches[2:])
    train(other, fused, batches[2:])
    torch.testing.assert_close(weights(other), weights(model), rtol=0, atol=1e-12)


def test_averages_follow_the_numbers_that_groups_give_their_parameters() -> None:
    """As torch reads a state: by position in the groups, whatever the parameters are called there."""
    model, batches = make_net(), make_batches(3)
    optimizer = FriendlySAM(model.parameters(), SGD, lr=0.1, momentum=0.9)
    train(model, optimizer, batches)
    state = optimizer.state_dict()
    names = {number: f"layer {number}" for number in state["param_groups"][0]["params"]}
    state["state"] = {names[number]: own for number, own in reversed(state["state"].items())}
    state["param_groups"][0]["params"] = [names[number] for number in state["param_groups"][0]["params"]][::-1]
    turned = FriendlySAM([*model.parameters()][::-1], SGD, lr=0.1, momentum=0.9)
    turned.load_state_dict(state)
    for p in model.parameters():
        assert torch.equal(turned.state[p]["momentum_buffer"], optimizer.state[p]["momentum_buffer"])
        assert torch.equal(turned.average[p], optimizer.average[p])


def test_an_average_does_not_move_where_a_hook_forbids_the_step() -> None:
    model, batches = make_net(), make_batches(2)
    optimizer = FriendlySAM(model.parameters(), SGD, lr=0.1)
    train(model, optimizer, batches[:1])
    before = copy.deepcopy(optimizer.state_dict())

    def forbid(*_: Any) -> None:
        raise RuntimeError("too long")

    optimizer.base_optimizer.register_step_pre_hook(forbid)
    with pytest.raises(RuntimeError, match="too long"):
        train(model, optimizer, batches[1:])
    assert identical(before, optimizer.state_dict())
