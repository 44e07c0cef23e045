"""One tensor of outputs out of whatever a network returns."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import Tensor

from holdfast.errors import HoldfastError

REMEDY = "wrap the model in a function that returns the logits alone, and give it as python:module:function"


def only_tensor(output: Any) -> tuple[Tensor, str | None]:
    """(outputs, which part was taken or None for all of it). More than one candidate is refused, never guessed.

    >>> import torch
    >>> only_tensor({"logits": torch.zeros(1, 2), "features": torch.zeros(1, 8)})[1]
    "'logits' of a dict"
    """
    if isinstance(output, Tensor):
        return output, None
    kind = type(output).__name__
    named = output.get("logits") if isinstance(output, Mapping) else getattr(output, "logits", None)
    if isinstance(named, Tensor):
        return named, f"'logits' of a {kind}"
    if not isinstance(output, Mapping | tuple | list):
        raise HoldfastError(f"the model returns a {kind} without logits; {REMEDY}")
    parts = output.items() if isinstance(output, Mapping) else enumerate(output)
    tensors = [(name, part) for name, part in parts if isinstance(part, Tensor)]
    if len(tensors) != 1:
        what = ", ".join(f"{name} {tuple(part.shape)}" for name, part in tensors) or "none"
        raise HoldfastError(
            f"the model returns a {kind} with {len(tensors)} tensors ({what}), and which are the logits is not said; "
            f"{REMEDY}"
        )
    return tensors[0][1], f"the only tensor of a {kind}"


def rows(outputs: Tensor) -> Tensor:
    """Outputs as (B, K); maps of one pixel lose it, others are refused: they are features.

    >>> import torch
    >>> rows(torch.zeros(2, 5, 1, 1)).shape
    torch.Size([2, 5])
    """
    if outputs.ndim == 4 and outputs.shape[2:] == (1, 1):
        return outputs.flatten(1)
    if outputs.ndim != 2:
        what = "feature maps" if outputs.ndim == 4 else "no row of logits"
        raise HoldfastError(
            f"the model gives outputs of shape {tuple(outputs.shape)}: {what}, where (images, classes) is needed; "
            f"{REMEDY}"
        )
    if not outputs.is_floating_point():
        raise HoldfastError(
            f"the model gives {str(outputs.dtype).removeprefix('torch.')} outputs, labels perhaps, where scores are "
            f"needed; {REMEDY}, or write its predictions to a file and give --predictions FILE"
        )
    return outputs
