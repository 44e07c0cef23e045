"""``torch.distributed.checkpoint.state_dict``, which asks an optimiser for its state before the first step."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch.distributed.checkpoint.state_dict import (
    StateDictOptions,
    get_optimizer_state_dict,
    set_optimizer_state_dict,
)
from torch.optim import SGD, AdamW

from holdfast.optim import FriendlySAM
from holdfast.optim.average import EMA_KEY
from tests.optim.problems import make_batches, make_net, make_optimizer, train, weights

BASES = ["sgd", "momentum", "fused momentum", "adam", "fused adamw"]


@pytest.mark.parametrize("base", BASES)
def test_a_new_optimiser_goes_on_where_the_old_one_was(base: str) -> None:
    model, batches = make_net(), make_batches(6)
    optimizer = make_optimizer(model, base)
    train(model, optimizer, batches[:3])
    again = copy.deepcopy(model)
    fresh = make_optimizer(again, base)
    set_optimizer_state_dict(again, fresh, copy.deepcopy(get_optimizer_state_dict(model, optimizer)))
    assert fresh.param_groups[0]["lr"] == optimizer.param_groups[0]["lr"]
    for net, own in ((model, optimizer), (again, fresh)):
        train(net, own, batches[3:])
    assert torch.equal(weights(model), weights(again))


@pytest.mark.parametrize("base", BASES)
def test_to_be_asked_before_the_first_step_changes_nothing(base: str) -> None:
    """Nor does to be saved and loaded then: a mean of nothing is 0, and its first gradient is still its first."""
    batches, (model, asked, loaded) = make_batches(4), (make_net(), make_net(), make_net())
    optimizers = [make_optimizer(net, base) for net in (model, asked, loaded)]
    template = get_optimizer_state_dict(asked, optimizers[1])
    assert all(EMA_KEY in own for own in template["state"].values())  # type: ignore[union-attr]
    set_optimizer_state_dict(loaded, optimizers[2], copy.deepcopy(template))
    steps = {"adam": 1, "fused adamw": 1}.get(base, 0)  # which torch's own count a step of zeros as
    for net, optimizer in zip((model, asked, loaded), optimizers, strict=True):
        for own in optimizer.state.values():
            if steps:
                own["step"].zero_()
        train(net, optimizer, batches)
    assert torch.equal(weights(model), weights(asked))
    assert torch.equal(weights(model), weights(loaded))


def test_a_mean_that_was_lost_on_the_way_is_missed() -> None:
    model, options = make_net(), StateDictOptions(flatten_optimizer_state_dict=True)
    optimizer = make_optimizer(model)
    train(model, optimizer, make_batches(2))
    flat: Any = get_optimizer_state_dict(model, optimizer, options=options)
    with pytest.warns(UserWarning, match=rf"friendly ascent but has no {EMA_KEY}.*flatten_optimizer_state_dict"):
        set_optimizer_state_dict(model, optimizer, flat, options=options)


@pytest.mark.parametrize("kind", [SGD, AdamW])
def test_a_state_of_the_plain_optimiser_is_no_loss(kind: Any, recwarn: pytest.WarningsRecorder) -> None:
    model = make_net()
    plain = kind(model.parameters(), lr=0.1)
    train(model, plain, make_batches(2))
    FriendlySAM(model.parameters(), kind, lr=0.1).load_state_dict(plain.state_dict())
    assert not recwarn.list
