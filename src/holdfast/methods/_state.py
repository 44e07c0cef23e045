"""What a training with a method remembers, and layers that a method keeps beside a network's own. Apart from the
methods, which import without torch."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from holdfast.errors import require

if TYPE_CHECKING:
    from holdfast.methods import Context, Stage


class State(nn.Module):
    """The auxiliary models and buffers of one training. context: what is known of it. stage: the one under way. shared:
    how ranks share its batches, where there are several."""

    stage: Stage

    def __init__(self, context: Context) -> None:
        super().__init__()
        self.context = context
        self.shared: Any = None

    def jointly(self, change: Callable[[Tensor], Tensor], rows: Tensor) -> Tensor:
        """``change(rows)``, for hooks inside a network that look across the rows of a batch or draw for them.

        Where several ranks share a batch, a network is given a part of its rows; this gives ``change`` all of them.
        """
        made: Tensor = change(rows) if self.shared is None else self.shared.jointly(change, rows)
        return made

    if TYPE_CHECKING:  # what a method puts here is its own business

        def __getattr__(self, name: str) -> Any: ...

        def __setattr__(self, name: str, value: Any) -> None: ...


class AuxiliaryNorms(nn.Module):
    """Copies of a network's BatchNorm layers, for any network of the same architecture."""

    def __init__(self, network: nn.Module) -> None:
        super().__init__()
        found = {name: module for name, module in network.named_modules() if isinstance(module, _BatchNorm)}
        remedy = "use --method.batch-norm shared"
        require(bool(found), f"--method.batch-norm auxiliary needs a model with BatchNorm layers; {remedy}")
        self.names = tuple(found)
        self.layers = nn.ModuleList(copy.deepcopy(module) for module in found.values())
        self._applied: WeakKeyDictionary[nn.Module, nn.Module] = WeakKeyDictionary()

    def applied_to(self, network: nn.Module) -> nn.Module:
        """The network with these layers in place of its own. It shares all tensors, so it follows both."""
        if network not in self._applied:
            plain = getattr(network, "_orig_mod", network)
            own = dict([*plain.named_parameters(), *plain.named_buffers()])
            memo = {id(tensor): tensor for tensor in own.values()} | {
                id(own[name]): tensor for name, tensor in self.tensors().items()
            }
            self._applied[network] = copy.deepcopy(plain, memo)
            if plain is not network or plain._compiled_call_impl is not None:
                self._applied[network].compile(dynamic=False)
        return self._applied[network]

    def tensors(self) -> dict[str, Tensor]:
        """Their parameters and buffers, by the names of those in the network that they stand in for."""
        return {
            f"{name}.{key}": tensor
            for name, layer in zip(self.names, self.layers, strict=True)
            for key, tensor in (*layer.named_parameters(), *layer.named_buffers())
        }
