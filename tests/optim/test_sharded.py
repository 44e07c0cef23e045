"""Weights spread over two processes (``fully_shard``) against one process that holds them all."""

from __future__ import annotations

import copy
import tempfile
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn
from torch.distributed import checkpoint
from torch.distributed.checkpoint.state_dict import get_optimizer_state_dict, set_optimizer_state_dict
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FullyShardedDataParallel, fully_shard
from torch.distributed.tensor import DTensor
from torch.optim import SGD, AdamW

from holdfast.errors import HoldfastError
from holdfast.optim import ASAM, SAM, FisherSAM, FriendlySAM
from tests.optim.problems import Example, make_batches, make_net
from tests.optim.two import found_by_both

pytestmark = pytest.mark.slow

CLOSE = {"rtol": 0.0, "atol": 1e-12}
ASCENTS: dict[str, Callable[[Any], SAM]] = {
    "sam": lambda params: SAM(params, SGD, rho=0.1, lr=0.1, momentum=0.9),
    "sam, unchecked": lambda params: SAM(params, SGD, rho=0.1, lr=0.1, momentum=0.9, skip_nonfinite=False),
    "asam": lambda params: ASAM(params, SGD, rho=0.5, lr=0.1),
    "fisher": lambda params: FisherSAM(params, SGD, rho=0.1, lr=0.1, momentum=0.9, foreach=False),
    "fsam": lambda params: FriendlySAM(params, SGD, rho=0.1, lmbda=0.6, lr=0.1, momentum=0.9),
    "fsam, half": lambda params: FriendlySAM(params, SGD, rho=0.1, sigma=0.5, lmbda=0.6, lr=0.1),
    "fsam, adamw": lambda params: FriendlySAM(params, AdamW, rho=0.1, lmbda=0.6, lr=0.02, fused=True),
}
"""Three of five rows of a weight lie on the first process, two on the second."""


def sharded() -> nn.Sequential:
    model = make_net()
    mesh = init_device_mesh("cpu", (2,))
    for part in (model[0], model[2], model):
        fully_shard(part, mesh=mesh)
    return model


def partly_sharded() -> nn.Sequential:
    model = make_net()
    fully_shard(model[2], mesh=init_device_mesh("cpu", (2,)))
    return model


def train(
    model: nn.Module, optimizer: SAM, batches: list[Example], spoil: Callable[[int, int], None] | None = None
) -> None:
    for i, (x, y) in enumerate(batches):
        calls = 0

        def closure(i: int = i, x: Tensor = x, y: Tensor = y) -> None:
            nonlocal calls
            F.cross_entropy(model(x), y).backward()
            if spoil is not None:
                spoil(i, calls)
            calls += 1

        optimizer.step(closure)


def halves(rank: int, n: int = 6) -> list[Example]:
    return [(x.chunk(2)[rank], y.chunk(2)[rank]) for x, y in make_batches(n)]


def full(tensor: Any) -> Tensor:
    own = tensor.full_tensor() if isinstance(tensor, DTensor) else tensor
    return own.detach().clone()  # type: ignore[no-any-return]


def whole(model: nn.Module) -> list[Tensor]:
    return [full(p) for p in model.parameters()]


def plain(state: Any) -> list[Tensor]:
    tensors = [value for own in state.values() for _, value in sorted(own.items()) if isinstance(value, Tensor)]
    return [full(t) for t in tensors]


def trained(rank: int, name: str) -> Any:
    model = sharded()
    optimizer = ASCENTS[name](model.parameters())
    train(model, optimizer, halves(rank))
    return {"weights": whole(model), "state": plain(optimizer.state_dict()["state"])}


def spoiled(rank: int, bad_pass: int) -> Any:
    """An infinity in one element of one process's part, in the third step."""
    model = sharded()
    optimizer = ASCENTS["fsam"](model.parameters())
    train(model, optimizer, halves(rank)[:2])
    kept = [whole(model), plain(optimizer.state_dict()["state"])]

    def spoil(_: int, calls: int) -> None:
        if rank == 1 and calls == bad_pass:
            gradient: Any = next(model.parameters()).grad
            gradient.to_local()[0, 0] = torch.inf

    train(model, optimizer, halves(rank)[2:3], spoil)
    after = [whole(model), plain(optimizer.state_dict()["state"])]
    same = all(map(torch.equal, kept[0] + kept[1], after[0] + after[1]))
    train(model, optimizer, halves(rank)[3:4])
    return {"skipped": optimizer.skipped, "untouched": same, "went on": not torch.equal(whole(model)[0], after[0][0])}


def resumed(rank: int, way: str) -> Any:
    """Four steps, saved; two more, against two more of others that were loaded."""
    make = ASCENTS["fsam, adamw" if "adamw" in way else "fsam"]
    model, again = sharded(), sharded()
    optimizer, fresh = make(model.parameters()), make(again.parameters())
    train(model, optimizer, halves(rank)[:4])
    state = get_optimizer_state_dict(model, optimizer)
    if "disk" in way:
        folders = [tempfile.mkdtemp() if rank == 0 else ""]
        dist.broadcast_object_list(folders)
        checkpoint.save(state, checkpoint_id=folders[0], no_dist=False)
        state = get_optimizer_state_dict(again, fresh)  # the template that is filled
        checkpoint.load(state, checkpoint_id=folders[0])
    again.load_state_dict(copy.deepcopy(model.state_dict()))
    set_optimizer_state_dict(again, fresh, copy.deepcopy(state))
    for net, own in ((model, optimizer), (again, fresh)):
        train(net, own, halves(rank)[4:])
    return {"weights": whole(model), "resumed": whole(again)}


def mixed() -> Any:
    """Both processes see whole batches, so that what is not spread stays the same on both."""
    model = partly_sharded()
    optimizer = FriendlySAM(model.parameters(), SGD, rho=0.1, lmbda=0.6, lr=0.1, momentum=0.9, foreach=False)
    train(model, optimizer, make_batches(6))
    return whole(model)


def refused() -> str:
    model = FullyShardedDataParallel(make_net(), use_orig_params=True, device_id=torch.device("cpu"))
    with pytest.raises(HoldfastError) as caught:
        ASCENTS["sam"](model.parameters())
    return str(caught.value)


WAYS = ("memory", "disk", "memory, adamw", "disk, adamw")


def work(rank: int) -> dict[Any, Any]:
    results: dict[Any, Any] = {name: trained(rank, name) for name in ASCENTS}
    results |= {("bad", bad_pass): spoiled(rank, bad_pass) for bad_pass in (0, 1)}
    results |= {way: resumed(rank, way) for way in WAYS}
    return {**results, "mixed": mixed(), "refused": refused()}


@pytest.fixture(scope="module")
def ranks(tmp_path_factory: pytest.TempPathFactory) -> list[dict[Any, Any]]:
    return found_by_both(work, tmp_path_factory)


@pytest.mark.parametrize("name", ASCENTS)
def test_parts_are_trained_as_the_whole_is(ranks: Any, name: str) -> None:
    model = make_net()
    optimizer = ASCENTS[name](model.parameters())
    train(model, optimizer, make_batches(6))
    for rank in ranks:
        torch.testing.assert_close(rank[name]["weights"], whole(model), **CLOSE)
        torch.testing.assert_close(rank[name]["state"], plain(optimizer.state_dict()["state"]), **CLOSE)


def test_parts_beside_weights_that_are_whole(ranks: Any) -> None:
    model = make_net()
    train(model, ASCENTS["fsam"](model.parameters()), make_batches(6))
    for rank in ranks:
        torch.testing.assert_close(rank["mixed"], whole(model), **CLOSE)


@pytest.mark.parametrize("bad_pass", [0, 1])
def test_a_bad_gradient_in_one_part_skips_the_step_in_all(ranks: Any, bad_pass: int) -> None:
    assert [rank["bad", bad_pass] for rank in ranks] == [{"skipped": 1, "untouched": True, "went on": True}] * 2


@pytest.mark.parametrize("way", WAYS)
def test_parts_resume_through_a_distributed_checkpoint(ranks: Any, way: str) -> None:
    for rank in ranks:
        assert all(map(torch.equal, rank[way]["weights"], rank[way]["resumed"]))


def test_shards_that_hide_what_they_are_are_refused(ranks: Any) -> None:
    assert "shard the model with torch.distributed.fsdp.fully_shard" in ranks[0]["refused"]
