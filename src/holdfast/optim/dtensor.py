"""Parameters that are spread over processes: DTensors, as ``torch.distributed.fsdp.fully_shard`` makes them.

Each process works on the part it holds, in plain tensors. Of the whole are the norm of all parts, and what is saved.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable
from typing import Any

from torch import Tensor

from holdfast.errors import require


def are_spread(tensors: Iterable[Tensor]) -> bool:
    """Whether any of them is."""
    module = sys.modules.get("torch.distributed.tensor")  # without it nobody has made one, and loading it takes time
    return module is not None and any(issubclass(kind, module.DTensor) for kind in set(map(type, tensors)))


def is_spread(tensor: Tensor) -> bool:
    return are_spread((tensor,))


def own(tensor: Tensor) -> Tensor:
    """The part that this process holds, in its memory; of a plain tensor all of it."""
    if is_spread(tensor):
        spread: Any = tensor.detach()
        return spread.to_local()  # type: ignore[no-any-return]
    return tensor


def own_parts(tensors: list[Tensor]) -> list[Tensor]:
    return [own(t) for t in tensors] if are_spread(tensors) else tensors


def spread_like(tensors: list[Tensor], parts: list[Tensor]) -> list[Tensor]:
    """What is spread as the tensors are and has these parts here."""
    if not are_spread(tensors):
        return parts
    return [_spread_like(t, part) if is_spread(t) else part for t, part in zip(tensors, parts, strict=True)]


def _spread_like(tensor: Tensor, part: Tensor) -> Tensor:
    like: Any = tensor.detach()
    whole: Tensor = type(like).from_local(
        part, like.device_mesh, like.placements, run_check=False, shape=like.shape, stride=like.stride()
    )
    return whole


def full(tensor: Tensor) -> Tensor:
    """All parts together. Waits for the other processes."""
    return tensor.full_tensor() if is_spread(tensor) else tensor  # type: ignore[attr-defined]


def own_of(value: Tensor, like: Tensor) -> Tensor:
    """The part of a value that belongs here, if it is spread as ``like`` is."""
    if not is_spread(like):
        return full(value)
    from torch.distributed.tensor import distribute_tensor  # takes time, and few need it

    target: Any = like
    if is_spread(value):
        return own(value.redistribute(target.device_mesh, target.placements))  # type: ignore[attr-defined]
    return own(distribute_tensor(value, target.device_mesh, target.placements))


def require_seen(params: Iterable[Tensor]) -> None:
    """Refuse parts of weights that do not say that they are parts: the norm would be of one process's alone."""
    require(
        not any(getattr(p, "_fsdp_flattened", False) for p in params),
        "these are shards of FullyShardedDataParallel, which hide that they are parts of something, so that every "
        "process would climb a radius of its own; shard the model with torch.distributed.fsdp.fully_shard",
    )
