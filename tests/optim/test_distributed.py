"""Two processes against one: the same weights from the joined batch, and what differs when each climbs alone."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel
from torch.optim import SGD, AdamW

from holdfast.optim import SAM, FriendlySAM
from tests.optim.problems import Example, identical, make_batches, make_net, weights
from tests.optim.two import found_by_both

pytestmark = pytest.mark.slow

STEPS = 6
CLOSE = {"rtol": 0.0, "atol": 1e-10}
ASCENTS: dict[str, Callable[[Any], SAM]] = {
    "sam": lambda params: SAM(params, SGD, rho=0.1, lr=0.1, momentum=0.9, fused=True),
    "fsam": lambda params: FriendlySAM(params, SGD, rho=0.1, lmbda=0.6, lr=0.1, momentum=0.9, fused=True),
    "fsam, adamw": lambda params: FriendlySAM(params, AdamW, rho=0.1, lmbda=0.6, lr=0.02),
}


def share(rank: int) -> list[Example]:
    """This process's half of every batch."""
    return [(x.chunk(2)[rank], y.chunk(2)[rank]) for x, y in make_batches(STEPS)]


def wrap(bucket_view: bool) -> DistributedDataParallel:
    return DistributedDataParallel(make_net(), gradient_as_bucket_view=bucket_view)


def step(model: nn.Module, optimizer: SAM, example: Example, **options: Any) -> None:
    def closure() -> Tensor:
        loss = F.cross_entropy(model(example[0]), example[1])
        loss.backward()
        return loss

    optimizer.step(closure, **options)


def together(rank: int, name: str, bucket_view: bool) -> Any:
    model = wrap(bucket_view)
    optimizer = ASCENTS[name](model.parameters())
    for example in share(rank):
        step(model, optimizer, example)
    return {"weights": weights(model), "state": optimizer.state_dict()}


def alone(rank: int, name: str, bucket_view: bool) -> Any:
    """Each climbs with its own gradient; halfway everything is saved, and from there run a second time."""
    model = wrap(bucket_view)
    optimizer = ASCENTS[name](model.parameters())
    halfway: Any = None
    for i, example in enumerate(share(rank)):
        if i == STEPS // 2:
            halfway = copy.deepcopy([model.module.state_dict(), optimizer.state_dict()])
        step(model, optimizer, example, ascent_context=model.no_sync)
    again = wrap(bucket_view)
    resumed = ASCENTS[name](again.parameters())
    again.module.load_state_dict(halfway[0])
    resumed.load_state_dict(halfway[1])
    for example in share(rank)[STEPS // 2 :]:
        step(again, resumed, example, ascent_context=again.no_sync)
    return {
        "weights": weights(model),
        "state": optimizer.state_dict(),
        "resumed": weights(again),
        "resumed state": resumed.state_dict(),
    }


def spoiled(rank: int, *, value: float, bad_pass: int, apart: bool, fused: bool) -> Any:
    """One process meets a bad gradient in one pass of the fourth step."""
    model = wrap(bucket_view=True)
    optimizer = FriendlySAM(model.parameters(), SGD, rho=0.1, lr=0.1, momentum=0.9, fused=fused)
    options = {"ascent_context": model.no_sync} if apart else {}
    kept = []
    for i, (x, y) in enumerate(share(rank)):
        kept.append(copy.deepcopy([weights(model), optimizer.state_dict()]))
        calls = 0

        def closure(i: int = i, x: Tensor = x, y: Tensor = y) -> None:
            nonlocal calls
            calls += 1
            loss = F.cross_entropy(model(x), y)
            (loss * value if rank == 0 and i == 3 and calls == bad_pass else loss).backward()

        optimizer.step(closure, **options)
    return {
        "weights": weights(model),
        "skipped": identical(kept[3], kept[4]),
        "went on": not identical(kept[4], kept[5]),
    }


class WithNothing(nn.Module):
    """A line, and a parameter without elements that takes part in it."""

    def __init__(self) -> None:
        super().__init__()
        self.line = nn.Linear(3, 1, dtype=torch.float64)
        self.nothing = nn.Parameter(torch.zeros(0, dtype=torch.float64))

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.line(x)
        return y + self.nothing.sum()


def spoiled_unseen(rank: int) -> Any:
    """The same, with a loss whose gradient at weights of NaN is 0, in the first pass of a process that climbs alone.

    The smallest parameter is none to carry the news: it is empty.
    """
    torch.manual_seed(0)
    model = DistributedDataParallel(WithNothing())
    optimizer = FriendlySAM(model.parameters(), SGD, rho=0.1, lr=0.1)
    kept = [copy.deepcopy([weights(model), optimizer.state_dict()])]
    for i in range(3):
        calls = 0

        def closure(i: int = i) -> None:
            nonlocal calls
            calls += 1
            x = torch.randn(4, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(10 * i + rank))
            loss = F.l1_loss(model(x), torch.ones(4, 1, dtype=torch.float64))
            (loss * float("inf") if rank == 0 and i == 1 and calls == 1 else loss).backward()

        optimizer.step(closure, ascent_context=model.no_sync)
        kept.append(copy.deepcopy([weights(model), optimizer.state_dict()]))
    return {
        "weights": weights(model),
        "skipped": identical(kept[1], kept[2]),
        "went on": not identical(kept[2], kept[3]),
    }


BAD = [
    {"value": value, "bad_pass": bad_pass, "apart": apart, "fused": fused}
    for value, fused in ((float("nan"), True), (float("inf"), False), (1e200, True))  # the last: squares overflow
    for bad_pass in (1, 2)
    for apart in (False, True)
]


def work(rank: int) -> dict[Any, Any]:
    results: dict[Any, Any] = {}
    for name in ASCENTS:
        for bucket_view in (False, True):
            results["together", name, bucket_view] = together(rank, name, bucket_view)
            results["alone", name, bucket_view] = alone(rank, name, bucket_view)
    for i, case in enumerate(BAD):
        results["bad", i] = spoiled(rank, **case)
    results["bad", len(BAD)] = spoiled_unseen(rank)
    return results


@pytest.fixture(scope="module")
def ranks(tmp_path_factory: pytest.TempPathFactory) -> list[dict[Any, Any]]:
    return found_by_both(work, tmp_path_factory)


@pytest.mark.parametrize("bucket_view", [False, True])
@pytest.mark.parametrize("name", ASCENTS)
def test_two_that_climb_together_are_one_on_the_joined_batch(ranks: Any, name: str, bucket_view: bool) -> None:
    model = make_net()
    optimizer = ASCENTS[name](model.parameters())
    for example in make_batches(STEPS):
        step(model, optimizer, example)
    state = optimizer.state_dict()["state"]
    for rank in ranks:
        found = rank["together", name, bucket_view]
        torch.testing.assert_close(found["weights"], weights(model), **CLOSE)
        torch.testing.assert_close(found["state"]["state"], state, **CLOSE)
    assert identical(*(rank["together", name, bucket_view] for rank in ranks))


@pytest.mark.parametrize("bucket_view", [False, True])
@pytest.mark.parametrize("name", ASCENTS)
def test_two_that_climb_alone_keep_the_same_weights(ranks: Any, name: str, bucket_view: bool) -> None:
    found = [rank["alone", name, bucket_view] for rank in ranks]
    assert torch.equal(found[0]["weights"], found[1]["weights"])
    joined = ranks[0]["together", name, bucket_view]["weights"]
    assert not torch.allclose(found[0]["weights"], joined, **CLOSE)
    averages = [[own.get("ascent_ema") for own in f["state"]["state"].values()] for f in found]
    rest = [
        [{k: v for k, v in own.items() if k != "ascent_ema"} for own in f["state"]["state"].values()] for f in found
    ]
    assert identical(*rest)
    assert identical(*averages) == (name == "sam")


@pytest.mark.parametrize("bucket_view", [False, True])
@pytest.mark.parametrize("name", ASCENTS)
def test_each_that_climbs_alone_resumes_from_its_own_state(ranks: Any, name: str, bucket_view: bool) -> None:
    for rank in ranks:
        found = rank["alone", name, bucket_view]
        assert torch.equal(found["resumed"], found["weights"])
        assert identical(found["resumed state"], found["state"])


def test_two_that_climb_alone_average_the_gradients_at_two_places(ranks: Any) -> None:
    """m-sharpness by hand: each half's own ε, one mean of the two second gradients."""
    model = make_net()
    base = SGD(model.parameters(), lr=0.1, momentum=0.9)
    params = list(model.parameters())
    for x, y in make_batches(STEPS):
        seconds = []
        for own_x, own_y in zip(x.chunk(2), y.chunk(2), strict=True):
            first = torch.autograd.grad(F.cross_entropy(model(own_x), own_y), params)
            norm = torch.cat([g.flatten() for g in first]).norm()
            moved = copy.deepcopy(model)
            with torch.no_grad():
                for p, g in zip(moved.parameters(), first, strict=True):
                    p += 0.1 * g / norm
            seconds.append(torch.autograd.grad(F.cross_entropy(moved(own_x), own_y), list(moved.parameters())))
        for p, a, b in zip(params, *seconds, strict=True):
            p.grad = (a + b) / 2
        base.step()
    torch.testing.assert_close(ranks[0]["alone", "sam", True]["weights"], weights(model), **CLOSE)


@pytest.mark.parametrize("case", range(len(BAD) + 1), ids=[*(str(list(case.values())) for case in BAD), "unseen"])
def test_a_bad_gradient_in_one_process_skips_the_step_in_both(ranks: Any, case: int) -> None:
    found = [rank["bad", case] for rank in ranks]
    assert identical(found[0]["weights"], found[1]["weights"])
    assert all(f["skipped"] and f["went on"] for f in found)
    assert all(f["weights"].isfinite().all() for f in found)
