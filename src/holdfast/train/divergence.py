"""Numbers that are no longer finite."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _NormBase

from holdfast.errors import HoldfastError


class Diverged(HoldfastError):
    """Numbers that are not finite came out of a training."""


def all_finite(networks: Iterable[nn.Module]) -> bool:
    """Whether everything that the networks have learned is finite. Waits for the device."""
    learned = {id(value): value.isfinite().all() for network in networks for value in _learned(network)}
    found = list(learned.values())
    return not found or bool(torch.stack([one.to(found[0].device) for one in found]).all())


def _learned(network: nn.Module) -> Iterator[Tensor]:
    """What steps move, and the statistics of normalisation. Other buffers may hold -inf by right, such as masks."""
    yield from (p for p in network.parameters() if p.requires_grad)
    for module in network.modules():
        if isinstance(module, _NormBase):
            yield from module.buffers()
