"""Where a training from few labels starts: weights that were learned from the images without labels."""

from __future__ import annotations

import torch
from torch import nn

from holdfast.data.splits import Dataset
from holdfast.detect.loop import LoopSettings
from holdfast.detect.rotation import train_rotation
from holdfast.detect.vae import train_vae
from holdfast.errors import require
from holdfast.models.heads import find_heads
from holdfast.models.preprocessing import Normalised
from holdfast.models.vae import LatentClassifier
from holdfast.settings import TrainSettings
from holdfast.train.api import Start

LR = 1e-3


def start(settings: TrainSettings) -> Start | None:
    """What brings a fresh network to where it starts from; None where it starts as it is."""
    model = settings.model
    require(
        model.name != "vae-head" or model.pretrain == "vae" or bool(model.weights),
        "vae-head trains a head on an encoder that is held still; give it one with --pretrain vae, or --weights",
    )
    if model.pretrain == "none":
        return None

    def pretrain(network: nn.Module, data: Dataset, device: torch.device) -> None:
        images = data.train if data.unlabeled is None else data.unlabeled
        precision = "fp32" if settings.loop.precision == "fp16" else settings.loop.precision
        loop = LoopSettings(
            model.pretrain_for, settings.loop.batch_size, LR, schedule="cosine", precision=precision,
            seed=settings.loop.seed,
        )  # fmt: skip
        assert isinstance(network, Normalised)
        if model.pretrain == "vae":
            inner = network.net
            require(
                isinstance(inner, LatentClassifier),
                f"{model.name} has no VAE's encoder; use --model vae-head or vae-classifier, or --pretrain rotation",
            )
            assert isinstance(inner, LatentClassifier)
            inner.start_from(train_vae(images, inner.settings, loop, device=device).model)
            return
        require(model.name != "vae-head", "vae-head is held still; use --pretrain vae, or --model vae-classifier")
        turned = train_rotation(images, loop, model=model.name, device=device).model
        heads = tuple(f"{name}." for name, _ in find_heads(network))
        own, learned = network.state_dict(), turned.state_dict()
        network.load_state_dict({k: own[k] if k.startswith(heads) else learned[k] for k in own})

    return pretrain
