"""What every part speaks of: a matrix as a function, the memory it may take, and why there is no spectrum."""

from __future__ import annotations

import os
from collections.abc import Callable

import torch
from torch import Tensor

from holdfast.errors import HoldfastError

Matvec = Callable[[Tensor], Tensor]
"""v (n,) to A v (n,), on one device, float32 or float64; A is symmetric."""


class NoSpectrum(HoldfastError):
    """There is no spectrum to be had: no gradient flows, values are not finite, memory is too small."""


def free_bytes(device: torch.device) -> int:
    """Memory that can still be had on a device; a careful guess where the system does not tell."""
    if device.type == "cuda":
        cached = torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
        return int(torch.cuda.mem_get_info(device)[0]) + cached
    try:
        return os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (AttributeError, OSError, ValueError):
        return 2 << 30
