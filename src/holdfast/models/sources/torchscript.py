"""TorchScript files: a program and its weights, run without the Python that made them."""

from __future__ import annotations

import warnings
from pathlib import Path

import torch
from torch import nn

from holdfast.errors import HoldfastError
from holdfast.models.architecture import reason
from holdfast.models.sources.asked import Asked
from holdfast.models.sources.hashing import hash_file
from holdfast.models.sources.opened import Found


def find(path: str, asked: Asked) -> Found:
    try:
        with warnings.catch_warnings():
            for kind in (FutureWarning, DeprecationWarning):
                warnings.simplefilter("ignore", kind)  # torch advises its successor; these files still exist
            net = torch.jit.load(path, map_location=asked.device)  # type: ignore[no-untyped-call]
    except Exception as error:  # damaged archives fail in many ways
        raise HoldfastError(
            f"cannot read {path} as TorchScript: {reason(error)}; write it again with torch.jit.save"
        ) from error
    return Found(net.eval(), channels=_channels(net), hash=hash_file(Path(path)))


def _channels(net: nn.Module) -> int | None:
    """Input channels of the first convolution: its weight (out, in, h, w), unless it is grouped."""
    first = next((value for value in net.state_dict().values() if value.ndim == 4), None)
    return int(first.shape[1]) if first is not None and first.shape[1] in (1, 3) else None
