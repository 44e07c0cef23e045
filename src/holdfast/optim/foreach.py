"""Arithmetic on lists of tensors, such as all weights or all gradients, in as few kernels as there are.

Parameters may be spread over processes: DTensors, as ``torch.distributed.fsdp.fully_shard`` makes them. Each process
works on the part it holds, in plain tensors. Of the whole are the norm of all parts, and what is saved.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer

from holdfast.errors import require

Tensors = list[Tensor]
NARROW = frozenset({torch.float16, torch.bfloat16})


def add_scaled(targets: Tensors, values: Tensors, rate: Tensor, *, unless: Tensor | None = None) -> None:
    """targets += rate · values in place, or nothing at all where ``unless`` is 1; decided on the device.

    Torch's fused descent kernel is the one multi-tensor operation with such a factor and such a switch; maximising
    makes it an ascent. It goes by memory: a target and its value must have the same strides, without gaps.
    """
    kinds = Optimizer._group_tensors_by_device_and_dtype([targets, values])  # type: ignore[list-item]
    for (device, kind), (pair, _) in kinds.items():
        assert device is not None  # as it is only where torch compiles
        moved, added = ([torch.view_as_real(t) if t.is_complex() else t for t in ts if t is not None] for ts in pair)
        if device.type == "cpu" and kind in NARROW:  # torch 2.11's fused kernel moves some elements only
            if unless is None or not bool(unless):
                torch._foreach_add_(moved, list(torch._foreach_mul([v.float() for v in added], rate)))
            continue
        torch._fused_sgd_(
            moved,
            added,
            [],
            weight_decay=0.0,
            momentum=0.0,
            lr=rate.to(device, torch.float64 if device.type == "cpu" else torch.float32),
            dampening=0.0,
            nesterov=False,
            maximize=True,
            is_first_step=False,
            grad_scale=None,
            found_inf=None if unless is None else unless.to(device, torch.float32),
        )


def norm_of(tensors: Tensors) -> Tensor:
    """Euclidean norm of all tensors together, in float32 at least: float16 ends at 65504 and knows no 1e-12.

    Of tensors that are spread over processes, all parts count.
    """
    if not are_spread(tensors):
        return _norm_of(tensors)
    by_mesh: dict[Any, Tensors] = {}
    for t in tensors:
        by_mesh.setdefault(getattr(t, "device_mesh", None), []).append(t)
    return _norm_of([full(_norm_of(those)) for those in by_mesh.values()])


def _norm_of(tensors: Tensors) -> Tensor:
    narrow = [t for t in tensors if t.dtype in NARROW]
    wide = [t for t in tensors if t.dtype not in NARROW] if narrow else tensors
    norms = [*torch._foreach_norm(narrow, dtype=torch.float32)] if narrow else []
    norms += torch._foreach_norm(wide) if wide else []
    device = norms[0].device
    total: Tensor = torch.linalg.vector_norm(torch.stack([n if n.device == device else n.to(device) for n in norms]))
    return total


def dense_gradient(gradient: Tensor, parameter: Tensor) -> Tensor:
    """The gradient, lying in memory as the parameter does, or without gaps where that has some."""
    if gradient.is_sparse:
        gradient = gradient.to_dense()
    if gradient.is_complex():
        gradient = gradient.resolve_conj()
    if gradient.stride() == parameter.stride() and _without_gaps(parameter):
        return gradient
    return torch.empty_like(parameter, requires_grad=False).copy_(gradient)


def _without_gaps(tensor: Tensor) -> bool:
    """Whether every element of its stretch of memory is the tensor's own.

    >>> _without_gaps(torch.zeros(4, 4).T), _without_gaps(torch.zeros(4, 4)[:, ::2])
    (True, False)
    """
    if tensor.is_contiguous():
        return True
    expected = 1
    for stride, size in sorted(zip(tensor.stride(), tensor.shape, strict=True)):
        if size != 1 and stride != expected:
            return False
        expected *= size
    return True


def lies_like(kept: Tensor, parameter: Tensor) -> bool:
    """Whether what is kept of a parameter is still of its kind: a model may be moved or cast between two steps."""
    if kept.stride() != parameter.stride() or kept.numel() != parameter.numel():  # together as good as the shape
        return False
    return kept.dtype == parameter.dtype and kept.device == parameter.device


def add_any(params: Tensors, climb: Tensors, rate: Tensor) -> None:
    """params += rate · climb, in one kernel where they lie alike and without gaps."""
    if all(p.stride() == c.stride() for p, c in zip(params, climb, strict=True)):
        add_scaled(params, climb, rate)
    else:
        torch._foreach_add_(params, torch._foreach_mul(climb, rate))


def copied_like(parameter: Tensor, value: Tensor, name: str) -> Tensor:
    """A copy of the value that lies where and as the parameter does; this process's part of it."""
    shapes = tuple(value.shape), tuple(parameter.shape)
    require(shapes[0] == shapes[1], f"{name} has shape {shapes[0]}, the parameter {shapes[1]}; is it another model's?")
    return torch.empty_like(own(parameter), requires_grad=False).copy_(own_of(value.detach(), parameter))


@torch.no_grad()
def without_projection(gradient: Sequence[Tensor], full: Sequence[Tensor]) -> list[Tensor]:
    """g − (g·G / G·G) G, with all tensors together as one vector.

    >>> without_projection([torch.tensor([3.0, 4.0])], [torch.tensor([2.0, 0.0])])
    [tensor([0., 4.])]
    """
    share = inner(gradient, full) / inner(full, full).clamp_min(torch.finfo(full[0].dtype).tiny)
    return [g - share * f for g, f in zip(gradient, full, strict=True)]


def inner(a: Sequence[Tensor], b: Sequence[Tensor]) -> Tensor:
    """Inner product, with all tensors together as one vector."""
    return torch.stack([(x * y).sum() for x, y in zip(a, b, strict=True)]).sum()


def are_spread(tensors: Iterable[Tensor]) -> bool:
    """Whether any of them is."""
    module = sys.modules.get("torch.distributed.tensor")  # without it nobody has made one, and loading it takes time
    return module is not None and any(issubclass(kind, module.DTensor) for kind in set(map(type, tensors)))


def is_spread(tensor: Tensor) -> bool:
    return are_spread((tensor,))


def own(tensor: Tensor) -> Tensor:
    """The part that this process holds, in its memory; of a plain tensor all of it."""
    return tensor.detach().to_local() if is_spread(tensor) else tensor  # type: ignore[attr-defined]


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
    hidden = "these are shards of FullyShardedDataParallel, which hide that they are parts of something"
    why = "so that every process would climb a radius of its own"
    remedy = "shard the model with torch.distributed.fsdp.fully_shard"
    require(not any(getattr(p, "_fsdp_flattened", False) for p in params), f"{hidden}, {why}; {remedy}")
