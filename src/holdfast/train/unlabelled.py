"""Trainings without labels, by the loop of every other training: a VAE, and what such trainings share.

Open this file to train on images alone: an objective is a method whose loss asks for no label.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, Literal

import torch
from torch import Tensor, nn

from holdfast.data.loaders import Images, check_images
from holdfast.data.splits import ArraySplit, Dataset
from holdfast.errors import require
from holdfast.methods import Context, Method, State
from holdfast.models.vae import VAE, VAESettings
from holdfast.rng import Generators, derive
from holdfast.settings import Bounded, LoopSettings, OptimizerSettings, ScheduleSettings, TrainSettings, Within
from holdfast.train.engine import Trainer
from holdfast.train.progress import Progress
from holdfast.train.step_parts import Diverged
from holdfast.types import Batch, View, Views

BOUNDS = ("elbo", "iwae", "reconstruction", "kl")

CHOICES = {"optimizer": "adam adamw sgd", "schedule": "constant cosine", "precision": "fp32 tf32 bf16"}
"""What settings of :class:`MinimiseSettings` may be."""

OnEpoch = Callable[[int, dict[str, float]], None]
"""Called with the number of each epoch, from 1, and what was measured in it."""


@dataclass(frozen=True)
class MinimiseSettings(Bounded):
    """How to minimise an objective.

    schedule: ``constant`` or ``cosine`` to 0. precision: ``fp32``, ``tf32`` or ``bf16``. seed: of order and draws.
    capture: on a GPU, make a step one CUDA graph. optimizer: ``adam``, ``adamw``, or ``sgd`` with a momentum of 0.9.
    """

    epochs: Annotated[int, Within(1)] = 20
    batch_size: Annotated[int, Within(1)] = 128
    lr: Annotated[float, Within(0, ends="()")] = 1e-3
    weight_decay: float = 0.0
    schedule: str = "constant"
    precision: str = "fp32"
    seed: int = 0
    capture: bool = True
    optimizer: Literal["adam", "adamw", "sgd"] = "adam"

    def __post_init__(self) -> None:
        super().__post_init__()
        for name, known in CHOICES.items():
            value, (*others, last) = getattr(self, name), known.split()
            require(value in (*others, last), f"{name} must be {', '.join(others)} or {last}, got {value!r}")


def minimise(
    objective: Method,
    network: nn.Module,
    images: ArraySplit,
    settings: MinimiseSettings,
    *,
    rng: Generators,
    device: torch.device,
    state: State | None = None,
    ema: float | None = None,
    measure: Callable[[int, nn.Module], Mapping[str, float]] | None = None,
    on_epoch: OnEpoch | None = None,
    note: Callable[[str], None] | None = None,
    progress: Progress | None = None,
) -> tuple[dict[str, float], ...]:
    """Train a network on images, with their labels if it needs some; returns what was measured in each epoch.

    rng: what the objective draws from. ema: decay of an average of the weights that the network ends with. measure:
    what else to measure after an epoch, of that network. note: called with the reason where a step cannot be
    captured on a GPU, which then runs eagerly; without it, that is an error. progress: where steps and epochs are
    shown, as a stage of the objective's name.
    """
    size = min(settings.batch_size, len(images))
    capture = "off" if not settings.capture else "on" if note is None else "auto"
    values: dict[str, Any] = {"precision": settings.precision, "capture": capture, "compile": "off"}
    values["channels_last"] = "on" if device.type == "cuda" else "off"
    resolved = TrainSettings(
        method=objective,
        optimizer=OptimizerSettings(settings.optimizer, settings.lr, weight_decay=settings.weight_decay),
        schedule=ScheduleSettings(settings.schedule),  # type: ignore[arg-type]
        loop=LoopSettings(settings.epochs, size, ema=ema, **values),
    )
    trainer = Trainer(
        resolved,
        Dataset("images", (), images),
        network,
        state or objective.start(Context(0, images.labels, images.groups, settings.epochs, nn.Identity)),
        device=device,
        folder=None,
        progress=_Listener(on_epoch, note, progress or Progress(), objective.name),
        rng=rng,
        order=_order_of_full_batches(len(images), size, settings.seed),
        measure=measure,
        fused=False,
    )
    try:
        trainer.run()
    except Diverged as error:
        raise Diverged(f"training diverged in epoch {trainer.at.epoch + 1}: lower lr {settings.lr:g}") from error
    network.eval()
    for parameter in network.parameters():
        parameter.grad = None
    return tuple(map(_measured, trainer.history))


def _order_of_full_batches(count: int, batch_size: int, seed: int) -> Callable[[int], Tensor]:
    """What an epoch shows: all images shuffled, by one generator for all epochs, less those that fill no batch."""
    generator, drawn = torch.Generator(), -1
    order = torch.empty(0, dtype=torch.int64)

    def show(epoch: int) -> Tensor:
        nonlocal drawn, order
        if epoch < drawn or drawn < 0:
            generator.manual_seed(derive(seed, "order"))
            drawn = -1
        while drawn < epoch:
            order = torch.randperm(count, generator=generator)[: count // batch_size * batch_size]
            drawn += 1
        return order

    return show


class _Listener(Progress):
    def __init__(
        self, on_epoch: OnEpoch | None, note: Callable[[str], None] | None, shown: Progress, stage: str
    ) -> None:
        self.on_epoch, self.on_note, self.shown, self.stage = on_epoch, note, shown, stage

    def begin(self, stage: str, epochs: int, steps: int, done: int) -> None:
        self.shown.begin(self.stage, epochs, steps, done)

    def step(self) -> None:
        self.shown.step()

    def epoch(self, record: Mapping[str, Any], epochs: int) -> None:
        self.shown.epoch({**record, "stage": self.stage}, epochs)
        if self.on_epoch is not None:
            self.on_epoch(record["epoch"], _measured(record))

    def note(self, text: str) -> None:
        if self.on_note is not None:
            self.on_note(text)


def _measured(record: Mapping[str, Any]) -> dict[str, float]:
    """What an epoch measured, of all that the loop records."""
    return {k.removeprefix("train_"): v for k, v in record.items() if k.startswith(("train_", "validation_"))}


def in_memory(images: Images) -> ArraySplit:
    """All images as uint8 (N, C, H, W), checked."""
    check_images(images)
    if not isinstance(images, (Tensor, ArraySplit)):
        images = images.read(torch.arange(len(images)))
    split = ArraySplit(images) if isinstance(images, Tensor) else images
    require(len(split) > 0, "there is no image to train on; give at least one")
    return split


@dataclass(frozen=True, eq=False)
class TrainedVAE:
    """A trained VAE.

    history: the mean loss, reconstruction and KL of each epoch.
    """

    model: VAE
    history: tuple[dict[str, float], ...]


@dataclass(frozen=True)
class VAEObjective(Method):
    """Minus a lower bound of log p(x), or one half of it."""

    name: ClassVar[str] = "vae"
    settings: VAESettings
    bound: str = "elbo"
    samples: int = 5

    @property
    def measures(self) -> tuple[str, ...]:  # type: ignore[override]
        return () if self.bound == "iwae" else ("reconstruction", "kl")

    def views(self, batch: Batch, *, model: nn.Module, state: State, rng: Generators) -> Views:
        shape = [self.samples] * (self.bound == "iwae") + [len(batch), self.settings.latent]
        noise = torch.randn(shape, device=batch.x.device, generator=rng["method"])
        return Views((View(batch.x, batch.y),), extra={"noise": noise})

    def forward(self, model: nn.Module, views: Views, *, state: State) -> tuple[Tensor, ...]:
        """(what is measured of each image, terms of the loss)."""
        assert isinstance(model, VAE)
        x, noise = views.items[0].x, views.extra["noise"]
        if self.bound == "iwae":
            bound = model.importance_weighted(x, noise)
            return bound.detach(), bound
        terms = model.terms(x, noise)
        return torch.stack([terms.reconstruction, terms.kl], 1).detach(), terms.reconstruction, terms.kl

    def loss(self, logits: tuple[Tensor, ...], views: Views) -> Tensor:
        first, *rest = (term.mean() for term in logits[1:])  # the bound; or the reconstruction and the KL term
        if self.bound == "elbo":
            return first + self.settings.beta * rest[0]
        return {"iwae": -first, "reconstruction": first, "kl": rest[-1] if rest else first}[self.bound]

    def measured(self, outputs: Tensor, y: Tensor) -> tuple[Tensor, ...]:
        return tuple(outputs.float().sum(0)) if self.measures else ()


def train_vae(
    images: Images,
    settings: VAESettings,
    loop: MinimiseSettings | None = None,
    *,
    bound: str = "elbo",
    samples: int = 5,
    device: str | torch.device = "cpu",
    on_epoch: OnEpoch | None = None,
    note: Callable[[str], None] | None = None,
    progress: Progress | None = None,
) -> TrainedVAE:
    """Train a VAE on these images.

    bound: what is maximised: ``elbo``, or ``iwae``, the importance-weighted bound with so many ``samples``; or, to
    see what each half of the ELBO does alone, ``reconstruction`` or ``kl``. progress: where steps are shown.

    >>> from holdfast.models.vae import VAESettings
    >>> images = torch.rand(64, 1, 8, 8, generator=torch.Generator().manual_seed(0))
    >>> trained = train_vae(images, VAESettings((1, 8, 8), latent=2), MinimiseSettings(epochs=2, batch_size=32))
    >>> sorted(trained.history[-1])
    ['kl', 'loss', 'reconstruction']
    """
    loop = loop or MinimiseSettings()
    device = torch.device(device)
    require(bound in BOUNDS, f"bound must be one of {', '.join(BOUNDS)}, got {bound!r}")
    require(samples >= 1, f"samples must be >= 1, got {samples}")
    split = in_memory(images)
    shapes = f"{settings.shape}, these are {split.shape}"
    require(split.shape == settings.shape, f"the VAE is for images of shape (C, H, W) {shapes}")
    with torch.random.fork_rng([device] if device.type == "cuda" else []):
        torch.manual_seed(derive(loop.seed, "vae/weights"))
        model = VAE(settings).to(device)
    rng = Generators(loop.seed, device, purposes={"method": "vae/noise"})
    objective = VAEObjective(settings, bound, samples)
    history = minimise(
        objective, model, split, loop, rng=rng, device=device, on_epoch=on_epoch, note=note, progress=progress
    )
    return TrainedVAE(model, history)
