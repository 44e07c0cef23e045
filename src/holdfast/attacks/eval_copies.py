"""Copies of networks for attacks during training: in evaluation mode, constant, with their weights cast once."""

from __future__ import annotations

import copy
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn

CAST = (nn.Conv1d, nn.Conv2d, nn.Conv3d, nn.Linear)
"""Layers whose weights autocast casts, whatever else the network does."""


class EvalCopy:
    """A network that follows another's weights, in evaluation mode and without gradients of its own.

    Under autocast every pass casts every weight; an attack of S steps casts them S times. The copy holds the casts of
    convolutions and linear layers, made by :meth:`refresh` in one kernel, and shares all other tensors with the
    original, so that it gives the very numbers the original gives in evaluation mode under autocast.
    """

    def __init__(self, original: nn.Module, dtype: torch.dtype) -> None:
        network = getattr(original, "_orig_mod", original)
        cast = {p for m in network.modules() if isinstance(m, CAST) for p in m.parameters(recurse=False)}
        self._from: list[Tensor] = [p for p in network.parameters() if p in cast and p.dtype == torch.float32]
        self._to: list[Tensor] = [p.detach().to(dtype) for p in self._from]
        ours = dict(zip(self._from, self._to, strict=True))
        memo: dict[int, object] = {id(b): b for b in network.buffers()}
        for p in network.parameters():
            memo[id(p)] = nn.Parameter(ours.get(p, p.detach()), requires_grad=False)
        self.network: nn.Module = copy.deepcopy(network, memo).eval()
        if network is not original or network._compiled_call_impl is not None:
            self.network.compile(dynamic=False)

    @torch.no_grad()
    def refresh(self) -> nn.Module:
        """The copy with the current weights."""
        torch._foreach_copy_(self._to, self._from)
        return self.network


class EvalCopies:
    def __init__(self) -> None:
        self._made: WeakKeyDictionary[nn.Module, EvalCopy] = WeakKeyDictionary()

    def of(self, network: nn.Module, device: torch.device) -> nn.Module:
        """The network's copy with its current weights; the network itself where nothing is cast."""
        if not torch.is_autocast_enabled(device.type):
            return network
        if network not in self._made:
            self._made[network] = EvalCopy(network, torch.get_autocast_dtype(device.type))
        return self._made[network].refresh()
