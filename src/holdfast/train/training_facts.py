"""What a training's defaults follow from, read off its data, network and device. Open this file to change how a network
is recognised as pretrained or as a transformer, or how large its activations are."""

from __future__ import annotations

import os
import shutil
from collections.abc import Sequence
from statistics import fmean

import torch
from torch import Tensor, nn

from holdfast.ascents import ascent_of
from holdfast.data import Dataset
from holdfast.module_state import evaluating
from holdfast.settings import TrainSettings
from holdfast.settings.device_defaults import DeviceFacts
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


def device_facts_of(
    settings: TrainSettings, data: Dataset, network: nn.Module, device: torch.device, *, own: bool = False
) -> DeviceFacts:
    """own: the network is a module of the caller's. It may do what torch cannot compile, so it is not unless asked."""
    if device.type == "cpu":
        return DeviceFacts(images=len(data.train))
    layers = [m for m in network.modules() if any(True for _ in m.parameters(recurse=False))]
    return DeviceFacts(
        "cuda",
        bf16=torch.cuda.get_device_capability(device) >= (8, 0),
        compiler=not own and can_compile(),
        convolutions=sum(isinstance(m, nn.Conv2d) for m in layers),
        layers=len(layers),
        activations=activations(network, data.shape),
        passes=ascent_of(settings).passes,
        images=len(data.train),
    )


def can_compile() -> bool:
    """Whether torch finds what it compiles with on a GPU, Triton and a C compiler. Not for ranks that share batches:
    that compiling pays there was never measured."""
    if torch.distributed.is_available() and torch.distributed.is_initialized():
        return False
    from torch.utils._triton import has_triton_package

    compiler = os.environ.get("CC") or next(filter(None, map(shutil.which, ("cc", "gcc", "clang"))), None)
    return compiler is not None and bool(has_triton_package())


def activations(network: nn.Module, shape: Sequence[int]) -> int:
    """Numbers that the layers with weights put out for one image of this shape (C, H, W).

    >>> activations(nn.Sequential(nn.Conv2d(1, 4, 3), nn.ReLU(), nn.Flatten(), nn.Linear(144, 3)), (1, 8, 8))
    147
    """
    return sum(size for _, size in layer_outputs(network, shape))


def work_per_layer(network: nn.Module, shape: Sequence[int]) -> float:
    """Multiplications for one image of this shape (C, H, W), mean over the layers with weights.

    >>> work_per_layer(nn.Sequential(nn.Conv2d(1, 4, 3), nn.Flatten(), nn.Linear(144, 3)), (1, 8, 8))
    864.0
    """
    weights = ((getattr(layer, "weight", None), size) for layer, size in layer_outputs(network, shape))
    work = [size * max(1, weight[0].numel()) if isinstance(weight, Tensor) else size for weight, size in weights]
    return fmean(work) if work else 0.0


@torch.no_grad()
def layer_outputs(network: nn.Module, shape: Sequence[int]) -> list[tuple[nn.Module, int]]:
    """Every layer with weights, as often as it is used, with how many numbers it puts out for one image."""
    seen: list[tuple[nn.Module, int]] = []

    def note(layer: nn.Module, _: object, output: object) -> None:
        if isinstance(output, Tensor):
            seen.append((layer, output.numel()))

    layers = [m for m in network.modules() if any(True for _ in m.parameters(recurse=False))]
    hooks = [layer.register_forward_hook(note) for layer in layers]
    where = next((p.device for p in network.parameters()), torch.device("cpu"))
    try:
        with evaluating(network), torch.random.fork_rng(devices=[]):
            network(torch.zeros(1, *shape, device=where))
    finally:
        for hook in hooks:
            hook.remove()
    return seen
