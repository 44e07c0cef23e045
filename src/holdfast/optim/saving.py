"""The gradient averages inside the state dictionary of the base optimiser."""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Mapping
from typing import Any

from torch import Tensor

from holdfast.errors import require
from holdfast.optim.foreach import Tensors, copied_like

EMA_KEY = "ascent_ema"
"""Where a parameter's gradient average stands in ``state_dict()``."""


def with_averages(state: Mapping[str, Any], params: Iterable[Tensor], kept: Mapping[Tensor, Tensor]) -> dict[str, Any]:
    """A base optimiser's state with the averages of those parameters that have one."""
    entries = dict(state["state"])
    for number, p in enumerate(params):
        if p in kept:
            entries[number] = {**entries.get(number, {}), EMA_KEY: kept[p]}
    return {**state, "state": entries}


def without_averages(state: Mapping[str, Any], params: Tensors) -> tuple[dict[str, Any], dict[Tensor, Tensor]]:
    """(A base optimiser's state, the averages by parameter). Parameters have the numbers that the groups give them."""
    numbers = [number for group in state["param_groups"] for number in group["params"]]
    known = dict(zip(numbers, params, strict=False))  # torch refuses other counts
    plain, averages = {}, {}
    for number, own in state["state"].items():
        if EMA_KEY in own:
            require(
                number in known,
                f"the state has an {EMA_KEY} of parameter {number}, the optimiser {len(known)} parameters; "
                "is it another model's?",
            )
            averages[known[number]] = copied_like(known[number], own[EMA_KEY], f"{EMA_KEY} of parameter {number}")
        if rest := {key: value for key, value in own.items() if key != EMA_KEY}:
            plain[number] = rest
    if plain and not averages and any(group.get("sigma") for group in state["param_groups"]):
        warnings.warn(
            f"the state is of a friendly ascent but has no {EMA_KEY}, so its mean begins anew; what took it out? "
            "torch.distributed.checkpoint does with flatten_optimizer_state_dict=True, so leave that at False",
            stacklevel=4,  # this, load_state_dict and what keeps it from being differentiated, the caller
        )
    return {**state, "state": plain}, averages
