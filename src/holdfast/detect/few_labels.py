"""Classifiers from few labels and many images without: the report's way, done right, and four that beat it."""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Final

import torch
from torch import Tensor, nn

from holdfast.augment.basic import strong, to_float, weak
from holdfast.detect.features import Images, batches
from holdfast.detect.loop import LoopSettings, Losses, optimise
from holdfast.detect.rotation import pixel_statistics
from holdfast.detect.vae import resident
from holdfast.errors import require, unknown
from holdfast.losses import cross_entropy, reparameterise
from holdfast.methods import Context, State
from holdfast.methods.fixmatch import FixMatch
from holdfast.models import build_model
from holdfast.models.heads import find_head, replace_head
from holdfast.models.vae import VAE, latent_head
from holdfast.module_state import evaluating
from holdfast.rng import Generators, derive
from holdfast.train.precision import autocast, kernels
from holdfast.types import Batch

WAYS: Final = ("frozen", "fine-tuned", "supervised", "rotation", "fixmatch")
EMA: Final = 0.999
ENCODED: Final = 500
"""Images a pass when all are encoded."""


@dataclass(frozen=True)
class Mistakes:
    """What the report's classifier did that it should not have; off by default.

    softmax_before_loss: probabilities are given to a loss that takes logits: with five classes it cannot fall below
    log(1 + 4/e) = 0.905. sampled_z: a random draw of z is classified instead of its mean. linear_head: nothing stands
    between the layers of the head (the report names no activation), so that together they are one linear layer.
    """

    softmax_before_loss: bool = False
    sampled_z: bool = False
    linear_head: bool = False


class EncoderClassifier(nn.Module):
    """The report's head on a VAE's encoder: latent → 256 → 512 → classes, on the mean of q(z|x), giving logits.

    frozen: the encoder keeps its weights, whoever trains the module: any method and ascent of the project can.
    """

    def __init__(
        self, encoder: VAE, num_classes: int, *, frozen: bool = True, mistakes: Mistakes | None = None
    ) -> None:
        super().__init__()
        self.encoder, self.frozen, self.mistakes = encoder, frozen, mistakes or Mistakes()
        self.head = latent_head(encoder.settings.latent, num_classes)
        if self.mistakes.linear_head:
            self.head = nn.Sequential(*(layer for layer in self.head if isinstance(layer, nn.Linear)))
        if frozen:
            for parameter in encoder.parameters():
                parameter.requires_grad_(False)

    def forward(self, x: Tensor, noise: Tensor | None = None) -> Tensor:
        return self.classify(*self.encoder.encode(x), noise)

    def classify(self, mean: Tensor, log_var: Tensor, noise: Tensor | None = None) -> Tensor:
        """What forward says of images with these means and log variances of q(z|x), each (B, K)."""
        if self.mistakes.sampled_z:
            z = reparameterise(mean, log_var, torch.randn_like(mean) if noise is None else noise)
        else:
            z = mean
        out: Tensor = self.head(z)
        return out.softmax(1) if self.mistakes.softmax_before_loss else out


@dataclass(frozen=True, eq=False)
class FewLabels:
    """A classifier and how its training went: one record an epoch."""

    model: nn.Module
    history: tuple[dict[str, float], ...]


def train_few_labels(
    way: str,
    images: Images,
    labels: Tensor,
    *,
    num_classes: int,
    vae: VAE | None = None,
    encoder: nn.Module | None = None,
    unlabeled: Images | None = None,
    validation: tuple[Images, Tensor] | None = None,
    model: str = "convnet",
    loop: LoopSettings | None = None,
    mistakes: Mistakes | None = None,
    fixmatch: FixMatch | None = None,
    flip: bool = False,
    device: str | torch.device = "cpu",
    on_epoch: Callable[[int, dict[str, float]], None] | None = None,
) -> FewLabels:
    """Train a classifier on labelled images (N, C, H, W) with labels (N,).

    way: ``frozen`` (a VAE's encoder held still, the report's head), ``fine-tuned`` (the same, moving), ``supervised``
    (a small network from scratch, augmented), ``rotation`` (the same, started from an encoder that learned to predict
    rotations), ``fixmatch`` (either, with ``unlabeled`` images: where it is sure of an image, it must say the same
    of a strongly changed copy). validation: images and labels that are only looked at, after every epoch. flip: whether
    mirroring an image leaves its class as it is.
    """
    if way not in WAYS:
        raise unknown("way", way, WAYS)
    loop = loop or LoopSettings(epochs=30, batch_size=64, lr=1e-3, schedule="cosine")
    device = torch.device(device)
    x = resident(images, device)
    require(labels.shape == (len(x),), f"{len(x)} images need as many labels, got shape {tuple(labels.shape)}")
    require(
        bool(((labels >= 0) & (labels < num_classes)).all()),
        f"labels must be in 0..{num_classes - 1}, got {int(labels.min())} to {int(labels.max())}",
    )
    y = labels.to(device)
    rng = Generators(derive(loop.seed, f"few-labels/{way}"), device)
    draw = rng["method"]
    with torch.random.fork_rng([device] if device.type == "cuda" else []):
        torch.manual_seed(derive(loop.seed, "few-labels/weights"))
        network = _network(way, vae, encoder, model, x, num_classes, mistakes).to(device)
    if device.type == "cuda":
        network = network.to(memory_format=torch.channels_last)
    averaged: nn.Module | None = None
    if way in ("frozen", "fine-tuned"):
        losses = _latent_losses(network, x, y, draw, loop)
    elif way == "fixmatch":
        require(unlabeled is not None, "fixmatch needs unlabelled images; give unlabeled")
        assert unlabeled is not None
        others = resident(unlabeled, device)
        require(others.shape[1:] == x.shape[1:], f"unlabelled images are {tuple(others.shape[1:])}, "
                f"labelled ones {tuple(x.shape[1:])}; make them equal")  # fmt: skip
        context = Context(num_classes, labels, torch.zeros_like(labels), loop.epochs, lambda: network, others)
        method = replace(fixmatch or FixMatch(), flip=flip)
        losses = _method_losses(method, method.start(context), network, x, y, rng, loop)
        averaged = copy.deepcopy(network)
    else:
        losses = _supervised_losses(network, x, y, draw, loop, flip)
    checked: list[dict[str, float]] = []

    def after_epoch(epoch: int, record: dict[str, float]) -> None:
        if validation is not None:
            share, loss = accuracy(averaged or network, *validation, seed=epoch, device=device)
            checked.append({"validation_accuracy": share, "validation_loss": loss})
        if on_epoch is not None:
            on_epoch(epoch, record | (checked[-1] if checked else {}))

    network.train()
    parameters = [p for p in network.parameters() if p.requires_grad]
    with kernels(loop.precision, deterministic=False):
        history = optimise(
            losses,
            parameters,
            len(x),
            loop,
            device=device,
            generators=(draw,),
            on_epoch=after_epoch,
            after_step=None if averaged is None else _follow(averaged, network),
        )
    final = network if averaged is None else averaged
    if checked:
        history = tuple(own | seen for own, seen in zip(history, checked, strict=True))
    return FewLabels(final.eval(), history)


def accuracy(
    model: nn.Module, images: Images, labels: Tensor, *, seed: int = 0, device: str | torch.device = "cpu"
) -> tuple[float, float]:
    """(share of images classified right, mean cross-entropy); a model that draws at random does so from the seed."""
    device = torch.device(device)
    hits, loss, first = 0, 0.0, 0
    with evaluating(model), torch.no_grad(), torch.random.fork_rng([device] if device.type == "cuda" else []):
        torch.manual_seed(derive(seed, "few-labels/accuracy"))
        for x in batches(images, device):
            truth = labels[first : first + len(x)].to(device)
            out = model(x)
            hits += int((out.argmax(1) == truth).sum())
            loss += float(cross_entropy(out, truth).sum())
            first += len(x)
    require(first > 0, "there is no image to classify; give at least one")
    return hits / first, loss / first


def _network(
    way: str,
    vae: VAE | None,
    encoder: nn.Module | None,
    model: str,
    x: Tensor,
    num_classes: int,
    mistakes: Mistakes | None,
) -> nn.Module:
    if way in ("frozen", "fine-tuned"):
        require(vae is not None, f"{way} needs a trained VAE; give vae")
        assert vae is not None
        own = copy.deepcopy(vae)
        for parameter in own.parameters():
            parameter.requires_grad_(True)
        return EncoderClassifier(own, num_classes, frozen=way == "frozen", mistakes=mistakes)
    if way == "rotation" or (way == "fixmatch" and encoder is not None):
        require(encoder is not None, "rotation needs an encoder trained by train_rotation; give encoder")
        started = copy.deepcopy(encoder)
        assert started is not None
        require(bool(find_head(started)), "the encoder has no head to replace")
        replace_head(started, num_classes)
        return started
    channels, height, width = x.shape[1:]
    mean, std = pixel_statistics(x)
    return build_model(
        model, num_classes=num_classes, in_channels=channels, image_size=(height, width), mean=mean, std=std
    ).model


def _latent_losses(
    network: nn.Module, x: Tensor, y: Tensor, draw: torch.Generator, loop: LoopSettings
) -> Callable[[Tensor], Losses]:
    """A frozen encoder is asked once: it would say the same of an image in every epoch."""
    assert isinstance(network, EncoderClassifier)
    latent = network.encoder.settings.latent
    known: tuple[Tensor, ...] = ()
    if network.frozen:
        with torch.no_grad(), autocast(loop.precision, x.device):
            parts = [network.encoder.encode(to_float(part)) for part in torch.split(x, ENCODED)]
        known = tuple(torch.cat(part) for part in zip(*parts, strict=True))

    def losses(index: Tensor) -> Losses:
        noise = torch.randn(len(index), latent, device=x.device, generator=draw)
        with autocast(loop.precision, x.device):
            mean, log_var = (k[index] for k in known) if known else network.encoder.encode(to_float(x[index]))
            out = network.classify(mean, log_var, noise)
        return {"loss": cross_entropy(out, y[index]).mean()}

    return losses


def _supervised_losses(
    network: nn.Module, x: Tensor, y: Tensor, draw: torch.Generator, loop: LoopSettings, flip: bool
) -> Callable[[Tensor], Losses]:
    def losses(index: Tensor) -> Losses:
        with autocast(loop.precision, x.device):
            out = network(strong(to_float(x[index]), draw, flip=flip))
        return {"loss": cross_entropy(out, y[index]).mean()}

    return losses


def _method_losses(
    method: FixMatch,
    state: State,
    network: nn.Module,
    x: Tensor,
    y: Tensor,
    rng: Generators,
    loop: LoopSettings,
) -> Callable[[Tensor], Losses]:
    """The method as any training has it, on labelled images that are moved a little."""

    def losses(index: Tensor) -> Losses:
        moved = weak(to_float(x[index]), rng["method"], flip=method.flip)
        batch = Batch(index, moved, y[index], torch.zeros_like(index))
        with autocast(loop.precision, x.device):
            views = method.views(batch, model=network, state=state, rng=rng)
            logits = method.forward(network, views, state=state)
            loss = method.loss(logits, views)
        guessed = views.items[1].weight
        assert guessed is not None
        sure = (guessed > 0).float().mean()
        return {"loss": loss, "supervised": cross_entropy(logits[0].detach(), batch.y).mean(), "sure": sure}

    return losses


def _follow(averaged: nn.Module, network: nn.Module) -> Callable[[], None]:
    """The average moves a little towards the network after each step; it starts moving fast."""
    own = list(averaged.parameters())
    theirs = list(network.parameters())
    buffers = list(zip(averaged.buffers(), network.buffers(), strict=True))
    steps = torch.zeros((), device=own[0].device)

    @torch.no_grad()
    def follow() -> None:
        steps.add_(1)
        weight = 1 - torch.clamp((1 + steps) / (10 + steps), max=EMA)
        for mine, other in zip(own, theirs, strict=True):
            mine.add_((other - mine) * weight)
        for kept, current in buffers:
            kept.copy_(current)

    return follow
