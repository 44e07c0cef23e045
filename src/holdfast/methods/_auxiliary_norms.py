"""A second set of BatchNorm layers, for images that a method makes (AdvProp). Kept apart: methods import no torch."""

from __future__ import annotations

import copy

from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from holdfast.errors import require


class AuxiliaryNorms(nn.Module):
    """Copies of a network's BatchNorm layers, for any network of the same architecture."""

    def __init__(self, network: nn.Module) -> None:
        super().__init__()
        found = {name: module for name, module in network.named_modules() if isinstance(module, _BatchNorm)}
        remedy = "use --method.batch-norm shared"
        require(bool(found), f"--method.batch-norm auxiliary needs a model with BatchNorm layers; {remedy}")
        self.names = tuple(found)
        self.layers = nn.ModuleList(copy.deepcopy(module) for module in found.values())

    def tensors(self) -> dict[str, Tensor]:
        """Their parameters and buffers, by the names of those in the network that they stand in for."""
        return {
            f"{name}.{key}": tensor
            for name, layer in zip(self.names, self.layers, strict=True)
            for key, tensor in (*layer.named_parameters(), *layer.named_buffers())
        }
