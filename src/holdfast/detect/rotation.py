"""An encoder without labels: taught to tell by how many quarter turns an image is rotated (Gidaris et al., 2018)."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from holdfast.augment.basic import crop_and_flip, to_float
from holdfast.detect.changes import CHANGES, change_each
from holdfast.detect.features import TURNS, Images
from holdfast.detect.loop import LoopSettings, Losses, optimise
from holdfast.detect.vae import resident
from holdfast.errors import require
from holdfast.losses import cross_entropy
from holdfast.models import BuiltModel, ModelCard, Normalised, build_model
from holdfast.models.heads import find_head, width
from holdfast.models.preprocessing import numbers
from holdfast.rng import derive
from holdfast.train.precision import autocast, kernels


def train_rotation(
    images: Images,
    loop: LoopSettings | None = None,
    *,
    model: str = "convnet",
    shift: int = 2,
    changes: bool = False,
    device: str | torch.device = "cpu",
    on_epoch: Callable[[int, dict[str, float]], None] | None = None,
) -> BuiltModel:
    """A network with a head of four: every image of a batch is shown in all four turns, shifted a little.

    changes: it is also shown changed, and the head must tell how: see :mod:`holdfast.detect.changes`. A turned image
    that looks changed is then no longer recognised, so that damage shows in the score ``rotation`` too.
    """
    loop = loop or LoopSettings(schedule="cosine")
    device = torch.device(device)
    x = resident(images, device)
    channels, height, width = x.shape[1:]
    require(height == width, f"quarter turns need square images, got {height}x{width}; crop or pad them")
    mean, std = pixel_statistics(x)
    with torch.random.fork_rng([device] if device.type == "cuda" else []):
        torch.manual_seed(derive(loop.seed, "rotation/weights"))
        built = build_model(
            model,
            num_classes=TURNS + (len(CHANGES) if changes else 0),
            in_channels=channels,
            image_size=(height, width),
            mean=mean,
            std=std,
        )
    network = built.model.to(device)
    if device.type == "cuda":
        network = network.to(memory_format=torch.channels_last)
    draw = torch.Generator(device).manual_seed(derive(loop.seed, "rotation/augment"))

    def losses(index: Tensor) -> Losses:
        batch = to_float(crop_and_flip(x[index], pad=min(shift, height // 4), flip=False, generator=draw))
        turned = torch.cat([batch.rot90(turns, (2, 3)) for turns in range(TURNS)])
        truth = torch.arange(TURNS, device=device).repeat_interleave(len(batch))
        if changes:
            changed, which = change_each(batch, draw)
            turned, truth = torch.cat([turned, changed]), torch.cat([truth, TURNS + which])
        with autocast(loop.precision, device):
            logits = network(turned)
        right = (logits.argmax(1) == truth).float().mean()
        return {"loss": cross_entropy(logits, truth).mean(), "accuracy": right}

    network.train()
    with kernels(loop.precision, deterministic=False):
        optimise(losses, network.parameters(), len(x), loop, device=device, generators=(draw,), on_epoch=on_epoch)
    network.eval()
    return built


def pixel_statistics(x: Tensor) -> tuple[list[float], list[float]]:
    """(mean, standard deviation) of each channel of uint8 images, in [0, 1]."""
    values = x.double() / 255
    mean, std = values.mean((0, 2, 3)), values.std((0, 2, 3), unbiased=False)
    return mean.tolist(), std.clamp(min=1 / 255).tolist()


def rotation_card(built: BuiltModel, shape: tuple[int, int, int]) -> ModelCard:
    """What a saved encoder is: its classes are the turns and, where it learned them, the changes."""
    model: Normalised = built.model
    turns = ("0°", "90°", "180°", "270°")
    names = (*turns, *CHANGES)[: width(find_head(model)[1])]
    return ModelCard(
        name=built.name,
        num_classes=len(names),
        classes=names,
        in_channels=shape[0],
        image_size=(shape[1], shape[2]),
        mean=numbers(model.mean),
        std=numbers(model.std),
    )
