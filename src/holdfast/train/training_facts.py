"""What a training's defaults follow from, read off its data and network; and the defaults of one that has not begun.
Open this file to change how a network is recognised as pretrained or as a transformer."""

from __future__ import annotations

from torch import Tensor, nn

from holdfast.data import Dataset
from holdfast.settings import TrainSettings
from holdfast.settings.training_defaults import TrainingFacts

LAYER_NORMS = (nn.LayerNorm, nn.RMSNorm, nn.MultiheadAttention)
BATCH_NORMS = (nn.modules.batchnorm._BatchNorm, nn.GroupNorm, nn.modules.instancenorm._InstanceNorm)


def facts_of(settings: TrainSettings, data: Dataset, network: nn.Module, *, own: bool = False) -> TrainingFacts:
    """own: the network is a module of the caller's, and the settings do not say where its weights are from."""
    modules, model = list(network.modules()), settings.model
    like_transformer = any(isinstance(m, LAYER_NORMS) for m in modules)
    return TrainingFacts(
        images=len(data.train),
        network="transformer" if like_transformer else "convolutional",
        weights=sum(p.numel() for p in network.parameters()),
        pretrained=has_learned(network) if own else model.pretrained or model.weights is not None,
        frozen=model.freeze != "none",
        normalised=like_transformer or any(isinstance(m, BATCH_NORMS) for m in modules),
    )


def has_learned(network: nn.Module) -> bool:
    """Whether normalisation layers show that a network was trained before: running means, or scales that differ.

    A network without such layers shows nothing, and counts as fresh.

    >>> net = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4))
    >>> has_learned(net)
    False
    >>> import torch
    >>> net(torch.rand(2, 3, 8, 8)).shape, has_learned(net)
    (torch.Size([2, 4, 6, 6]), True)
    """
    for module in network.modules():
        mean, scale = getattr(module, "running_mean", None), getattr(module, "weight", None)
        if isinstance(mean, Tensor) and bool(mean.any()):
            return True
        if isinstance(module, (*LAYER_NORMS[:2], *BATCH_NORMS)) and isinstance(scale, Tensor):
            first = scale.flatten()[:1]  # fresh ones are all 1, or all 0
            if bool((scale != first).any()):
                return True
    return False
