"""Halves of a step that are replayed: what a recording depends on is in its key, and what it gave is given again.

A CUDA graph does the same operations on the same memory whenever it is replayed. Here a recording is the work itself,
called again and its results put where the first ones lay, and numbers that a graph would have kept must not have
changed. So the logic around graphs is tested without a GPU.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.optim import SGD, AdamW

from holdfast.devices import Recordings
from holdfast.optim import ASAM, SAM, FisherSAM, FriendlySAM
from holdfast.optim.average import Due
from tests.optim.problems import identical, make_batches, make_net, weights

BASES: dict[str, tuple[Any, dict[str, Any]]] = {
    "momentum": (SGD, {"lr": 0.1, "momentum": 0.9, "weight_decay": 0.01, "fused": True}),
    "adamw": (AdamW, {"lr": 0.02, "fused": True}),
}
KINDS: dict[str, tuple[type[SAM], dict[str, Any]]] = {
    "sam": (SAM, {}),
    "asam": (ASAM, {}),
    "fisher-sam": (FisherSAM, {}),
    "friendly-sam": (FriendlySAM, {"sigma": 0.7}),
}


class Simulated(Recordings):
    """Recordings without graphs."""

    def __init__(self, optimizer: SAM) -> None:
        super().__init__()
        self.optimizer = optimizer
        self.made: dict[Hashable, tuple[Callable[[], Any], Any, list[Any]] | None] = {}
        self.replays = 0

    def run(self, key: Hashable, work: Callable[[], Any]) -> Any:
        if key not in self.made:
            self.made[key] = None
            return work()
        known = self.made[key]
        if known is None:
            self.made[key] = known = work, work(), self._numbers()
            return known[1]
        recorded, result, numbers = known
        assert numbers == self._numbers(), "a graph would go on with the old ones"
        self.replays += 1
        _put(result, recorded())
        return result

    def _numbers(self) -> list[Any]:
        return [value for group in self.optimizer.param_groups for name, value in group.items() if name != "params"]


def _put(places: Any, values: Any) -> None:
    if isinstance(places, Tensor):
        places.copy_(values)
    elif isinstance(places, Due):
        _put(places.residual, values.residual)
    elif isinstance(places, (list, tuple)):
        for place, value in zip(places, values, strict=True):
            _put(place, value)


class Loop:
    """A training whose gradients always lie in the same places, as they come to in a warm allocator."""

    def __init__(self, kind: str, base: str, *, checked: bool, replayed: bool) -> None:
        family, own = KINDS[kind]
        descent, settings = BASES[base]
        self.model: nn.Module = make_net(seed=0)
        self.params = list(self.model.parameters())
        self.places = [torch.empty_like(p) for p in self.params]
        self.optimizer = family(self.params, descent, skip_nonfinite=checked, **own, **settings)
        self.recordings = Simulated(self.optimizer)
        if replayed:
            self.optimizer._recordings = self.recordings

    def step(self, x: Tensor, y: Tensor, *, spoil: int = 0) -> None:
        calls = 0

        def closure() -> None:
            nonlocal calls
            calls += 1
            found = torch.autograd.grad(F.cross_entropy(self.model(x), y), self.params)
            for p, place, gradient in zip(self.params, self.places, found, strict=True):
                p.grad = place.copy_(gradient)
            if calls == spoil:
                self.places[0].view(-1)[0] = torch.inf

        self.optimizer.step(closure)


@pytest.mark.parametrize("base", BASES)
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("checked", [True, False])
def test_a_replayed_training_is_the_plain_one(kind: str, base: str, checked: bool) -> None:
    plain, replayed = (Loop(kind, base, checked=checked, replayed=r) for r in (False, True))
    for i, batch in enumerate(make_batches(14)):
        for loop in (plain, replayed):
            for group in loop.optimizer.param_groups:
                group["rho"] = 0.1 if i < 8 else 0.02
            loop.step(*batch)
        assert torch.equal(weights(plain.model), weights(replayed.model)), f"step {i}"
    assert identical(plain.optimizer.state_dict()["state"], replayed.optimizer.state_dict()["state"])
    assert replayed.recordings.replays >= 12, "hardly anything was replayed, so hardly anything was tested"


@pytest.mark.parametrize("spoil", [1, 2])
def test_a_bad_gradient_is_skipped_in_a_replay(spoil: int) -> None:
    loop, other = (Loop("friendly-sam", "momentum", checked=True, replayed=True) for _ in range(2))
    batches = make_batches(8)
    for batch in batches[:6]:
        loop.step(*batch)
        other.step(*batch)
    before = loop.recordings.replays
    loop.step(*batches[6], spoil=spoil)
    assert loop.recordings.replays == before + 2
    assert torch.equal(weights(loop.model), weights(other.model))
    for each in (loop, other):
        each.step(*batches[7])
    assert torch.equal(weights(loop.model), weights(other.model))


def test_gradients_elsewhere_are_not_replayed_from_old_places() -> None:
    plain, replayed = (Loop("friendly-sam", "momentum", checked=False, replayed=r) for r in (False, True))
    kept = []
    for batch in make_batches(8):
        for loop in (plain, replayed):
            kept.append(loop.places)
            loop.places = [torch.empty_like(p) for p in loop.params]
            loop.step(*batch)
    assert torch.equal(weights(plain.model), weights(replayed.model))
    assert replayed.recordings.replays == 0
