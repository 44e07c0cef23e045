"""Classifiers from few labels and many images without: the report's way, done right, and four that beat it.

``holdfast train --labels`` trains the same kinds of classifiers as runs of their own; this is how the study did.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from typing import ClassVar, Final

import torch
from torch import Tensor, nn

from holdfast.augment.basic import strong, to_float, weak
from holdfast.data.loaders import Images, float_batches
from holdfast.data.splits import ArraySplit, channel_statistics
from holdfast.devices import autocast
from holdfast.errors import require, unknown
from holdfast.losses import cross_entropy, reparameterise
from holdfast.methods import Context, Method, State
from holdfast.methods.fixmatch import FixMatch
from holdfast.models import build_model
from holdfast.models.heads import find_head, replace_head
from holdfast.models.vae import VAE, latent_head
from holdfast.module_state import evaluating
from holdfast.rng import Generators, derive
from holdfast.train.unlabelled import MinimiseSettings, OnEpoch, in_memory, minimise
from holdfast.types import Batch, View, Views

WAYS: Final = ("frozen", "fine-tuned", "supervised", "rotation", "fixmatch")
EMA: Final = 0.999
ENCODED: Final = 500
"""Images per pass when all are encoded."""


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
    """A classifier and how its training went: one record per epoch."""

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
    loop: MinimiseSettings | None = None,
    mistakes: Mistakes | None = None,
    fixmatch: FixMatch | None = None,
    flip: bool = False,
    device: str | torch.device = "cpu",
    on_epoch: OnEpoch | None = None,
) -> FewLabels:
    """Train a classifier on labelled images (N, C, H, W) with labels (N,).

    way: ``frozen`` (a VAE's encoder frozen, the report's head), ``fine-tuned`` (the same, moving), ``supervised``
    (a small network from scratch, augmented), ``rotation`` (the same, started from an encoder that learned to predict
    rotations), ``fixmatch`` (either, with ``unlabeled`` images: where it is sure of an image, it must say the same
    of a strongly changed copy). validation: images and labels that only measure, after every epoch. flip: whether
    mirroring an image leaves its class as it is.
    """
    if way not in WAYS:
        raise unknown("way", way, WAYS)
    loop = loop or MinimiseSettings(epochs=30, batch_size=64, lr=1e-3, schedule="cosine")
    device = torch.device(device)
    x = in_memory(images).images
    require(labels.shape == (len(x),), f"{len(x)} images need as many labels, got shape {tuple(labels.shape)}")
    require(
        bool(((labels >= 0) & (labels < num_classes)).all()),
        f"labels must be in 0..{num_classes - 1}, got {int(labels.min())} to {int(labels.max())}",
    )
    rng = Generators(derive(loop.seed, f"few-labels/{way}"), device)
    with torch.random.fork_rng([device] if device.type == "cuda" else []):
        torch.manual_seed(derive(loop.seed, "few-labels/weights"))
        network = _network(way, vae, encoder, model, x, num_classes, mistakes).to(device)
    others: Tensor | None = None
    method: Method = OnStrongChanges(flip)
    if isinstance(network, EncoderClassifier):
        method = OnLatents()
    elif way == "fixmatch":
        require(unlabeled is not None, "fixmatch needs unlabelled images; give unlabeled")
        assert unlabeled is not None
        others = in_memory(unlabeled).images
        require(others.shape[1:] == x.shape[1:], f"unlabelled images are {tuple(others.shape[1:])}, "
                f"labelled ones {tuple(x.shape[1:])}; make them equal")  # fmt: skip
        own = {f.name: getattr(fixmatch, f.name) for f in fields(FixMatch)} if fixmatch else {}
        method = FewLabelFixMatch(**own | {"flip": flip})
    split = ArraySplit(x, labels)
    state = method.start(Context(num_classes, split.labels, split.groups, loop.epochs, nn.Identity, others))
    if isinstance(network, EncoderClassifier) and network.frozen:
        _remember_latents(state, network.encoder, x.to(device), loop.precision)

    def validate(epoch: int, model: nn.Module) -> Mapping[str, float]:
        if validation is None:
            return {}
        share, loss = accuracy(model, *validation, seed=epoch, device=device)
        return {"validation_accuracy": share, "validation_loss": loss}

    history = minimise(
        method,
        network,
        split,
        loop,
        rng=rng,
        device=device,
        state=state,
        ema=EMA if way == "fixmatch" else None,
        measure=validate,
        on_epoch=on_epoch,
    )
    return FewLabels(network, history)


def accuracy(
    model: nn.Module, images: Images, labels: Tensor, *, seed: int = 0, device: str | torch.device = "cpu"
) -> tuple[float, float]:
    """(share of images classified right, mean cross-entropy); a model that draws at random does so from the seed."""
    device = torch.device(device)
    hits, loss, first = 0, 0.0, 0
    with evaluating(model), torch.no_grad(), torch.random.fork_rng([device] if device.type == "cuda" else []):
        torch.manual_seed(derive(seed, "few-labels/accuracy"))
        for x in float_batches(images, device):
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
    mean, std = channel_statistics(ArraySplit(x))
    return build_model(
        model, num_classes=num_classes, in_channels=channels, image_size=(height, width), mean=mean, std=std
    ).model


@dataclass(frozen=True)
class OnLatents(Method):
    """Cross-entropy of a head on the latents of images, which a frozen encoder gives once and for all."""

    name: ClassVar[str] = "on-latents"
    measures: ClassVar[tuple[str, ...]] = ()

    def views(self, batch: Batch, *, model: nn.Module, state: State, rng: Generators) -> Views:
        assert isinstance(model, EncoderClassifier)
        shape = len(batch), model.encoder.settings.latent
        extra = {"noise": torch.randn(shape, device=batch.x.device, generator=rng["method"])}
        if model.frozen:
            extra |= {"mean": state.mean[batch.index], "log_var": state.log_var[batch.index]}
        return Views((View(batch.x, batch.y),), extra=extra)

    def forward(self, model: nn.Module, views: Views, *, state: State) -> tuple[Tensor, ...]:
        assert isinstance(model, EncoderClassifier)
        known = views.extra
        mean, log_var = (known["mean"], known["log_var"]) if model.frozen else model.encoder.encode(views.items[0].x)
        return (model.classify(mean, log_var, known["noise"]),)

    def measured(self, outputs: Tensor, y: Tensor) -> tuple[Tensor, ...]:
        return ()


def _remember_latents(state: State, encoder: VAE, x: Tensor, precision: str) -> None:
    with torch.no_grad(), autocast(precision, x.device):
        parts = [encoder.encode(to_float(part)) for part in torch.split(x, ENCODED)]
    for name, part in zip(("mean", "log_var"), zip(*parts, strict=True), strict=True):
        state.register_buffer(name, torch.cat(part), persistent=False)


@dataclass(frozen=True)
class OnStrongChanges(Method):
    """Cross-entropy of strongly changed images. flip: whether mirroring an image leaves its class as it is."""

    name: ClassVar[str] = "on-strong-changes"
    measures: ClassVar[tuple[str, ...]] = ()
    flip: bool = False

    def views(self, batch: Batch, *, model: nn.Module, state: State, rng: Generators) -> Views:
        return Views((View(strong(batch.x, rng["method"], flip=self.flip), batch.y),))

    def measured(self, outputs: Tensor, y: Tensor) -> tuple[Tensor, ...]:
        return ()


@dataclass(frozen=True)
class FewLabelFixMatch(FixMatch):
    """FixMatch with labelled images that are moved a little; measures how often a guess is sure enough."""

    measures: ClassVar[tuple[str, ...]] = ("supervised", "sure")

    def views(self, batch: Batch, *, model: nn.Module, state: State, rng: Generators) -> Views:
        moved = weak(batch.x, rng["method"], flip=self.flip)
        return super().views(replace(batch, x=moved), model=model, state=state, rng=rng)

    def forward(self, model: nn.Module, views: Views, *, state: State) -> tuple[Tensor, ...]:
        """(what is measured of each labelled image, logits of both kinds)."""
        logits = super().forward(model, views, state=state)
        known, guessed = views.items
        assert guessed.weight is not None
        supervised = cross_entropy(logits[0].detach(), known.label)
        sure = (guessed.weight > 0).float().mean()
        return torch.stack([supervised, sure.expand_as(supervised)], 1), *logits

    def loss(self, logits: tuple[Tensor, ...], views: Views) -> Tensor:
        return super().loss(logits[1:], views)

    def measured(self, outputs: Tensor, y: Tensor) -> tuple[Tensor, ...]:
        return tuple(outputs.sum(0))
