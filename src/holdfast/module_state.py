"""Change a model's modes, gradients or statistics for a while, and restore them: ``with evaluating(model): ...``."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager

import torch
from torch import Tensor, nn


def evaluating(*models: nn.Module) -> AbstractContextManager[None]:
    """Put every module into evaluation mode; afterwards each has its own flag back."""
    return _switched_off("training", [module for model in models for module in model.modules()])


def frozen_parameters(*models: Callable[..., object]) -> AbstractContextManager[None]:
    """No parameter of those that are modules requires a gradient; afterwards each has its own flag back.

    For passes that differentiate inputs alone: a compiled model would compute every parameter's gradient all the same.
    """
    return _switched_off("requires_grad", [p for m in models if isinstance(m, nn.Module) for p in m.parameters()])


@contextmanager
def _switched_off(flag: str, owners: Sequence[nn.Module | Tensor]) -> Iterator[None]:
    before = [getattr(owner, flag) for owner in owners]
    for owner in owners:
        setattr(owner, flag, False)
    try:
        yield
    finally:
        for owner, value in zip(owners, before, strict=True):
            setattr(owner, flag, value)


@contextmanager
def frozen_statistics(model: nn.Module) -> Iterator[None]:
    """Run forward passes that leave the model's buffers, its running statistics among them, unchanged.

    For a second pass at moved weights, so that statistics are updated once per step. Modules behave as in training;
    what they wrote is put back afterwards. Switching their tracking off instead would make a compiled model compile
    a second time, to slower code, and would miss modules that users wrote.

    >>> import torch
    >>> norm = torch.nn.BatchNorm1d(1)
    >>> with frozen_statistics(norm):
    ...     out = norm(torch.tensor([[5.0], [7.0]]))
    >>> norm.running_mean
    tensor([0.])
    """
    places = [(module, name, buffer) for module in model.modules() for name, buffer in module._buffers.items()]
    by_kind: dict[tuple[torch.device, torch.dtype], list[Tensor]] = {}  # each list is one kernel
    for b in model.buffers():
        if not _repeats_itself(b):
            by_kind.setdefault((b.device, b.dtype), []).append(b)
    kept = []
    for same in by_kind.values():
        copies = [torch.empty_like(b) for b in same]
        torch._foreach_copy_(copies, same)
        kept.append((same, [b._version for b in same], copies))
    try:
        yield
    finally:
        for module, name, buffer in places:  # a forward may have put another tensor in its place
            module._buffers[name] = buffer
        with torch.no_grad():
            for buffers, versions, copies in kept:
                # What autograd saw no change of may be part of a graph: it must see none now either.
                targets = [b.data if b._version == v else b for b, v in zip(buffers, versions, strict=True)]
                torch._foreach_copy_(targets, copies)


def _repeats_itself(tensor: Tensor) -> bool:
    """Whether several elements share memory, so that it cannot be written to."""
    strides = zip(tensor.stride(), tensor.shape, strict=True) if tensor.layout == torch.strided else ()
    return any(stride == 0 and size > 1 for stride, size in strides)


def call_with(tensors: Mapping[str, Tensor], model: nn.Module, x: Tensor) -> Tensor:
    """``model(x)`` with these parameters and buffers in place of its own, by their names; it may be a compiled model.

    A forward pass that writes to a buffer writes to the one that stands in.
    """
    if not tensors:
        return model(x)  # type: ignore[no-any-return]
    prefix = "_orig_mod." if hasattr(model, "_orig_mod") else ""
    return torch.func.functional_call(model, {prefix + name: t for name, t in tensors.items()}, (x,))  # type: ignore[no-any-return]
