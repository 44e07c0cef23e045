"""Optimiser, learning rate, batch size, length and warm-up where nobody says them: one pure function, from settings and
what is known of a training to settings. Open this file to change what they follow from.

===================  ============================================================================================
setting              follows from
===================  ============================================================================================
``batch_size``       the number of training images: 32 below 2,000, 64 below 10,000, else 128
``epochs``           a number of steps that a training should have, within bounds on the epochs (``ROWS``)
``optimizer``        sgd for a fresh convolutional network on 20,000 images or more, else adamw; the one whose usual
                     range a given ``lr`` lies in (sgd from 0.01 on)
``lr``               the optimiser and the row of ``ROWS``; times 3 under adamw for a fresh network of less than a
                     million weights, a third for one without normalisation layers; scaled with a given
                     ``batch_size``, in proportion under sgd and with its square root otherwise
``warmup``           a share of the epochs (``ROWS``); none where ``lr`` is given
===================  ============================================================================================

Precision, layout and compilation follow from the device: ``device_defaults.py``.

What is given is kept. How the numbers were chosen: docs/how-to/defaults.md and docs/decisions/0011-defaults.md.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from holdfast.settings.device_defaults import DeviceFacts, choose_for_device
from holdfast.settings.fields import build, flatten
from holdfast.settings.training import TrainSettings

CHOSEN_KEYS = ("optimizer", "lr", "batch_size", "epochs", "warmup")
"""The settings that follow from data and model where they are not given."""

NetworkKind = Literal["convolutional", "transformer"]


@dataclass(frozen=True)
class TrainingFacts:
    """What is known of a training before it starts.

    images: in the training split. network: "transformer" is any network with layer normalisation, ConvNeXt too.
    weights: how many the network has. pretrained: whether it starts from weights that were learned elsewhere.
    frozen: whether its last layer alone is trained. normalised: whether it has normalisation layers.
    """

    images: int
    network: NetworkKind = "convolutional"
    weights: int = 10_000_000
    pretrained: bool = False
    frozen: bool = False
    normalised: bool = True

    @property
    def row(self) -> str:
        start, net = "pretrained" if self.pretrained else "fresh", " network" * (self.network == "convolutional")
        return "the last layer alone" if self.frozen else f"a {start} {self.network}{net}"

    def __str__(self) -> str:
        count = f"{self.weights / 1e6:.3g} million" if self.weights >= 1_000_000 else f"{self.weights:,}"
        bare = "" if self.normalised else ", none of them in normalisation layers"
        return f"{self.images:,} training images and {self.row} ({count} weights{bare})"


@dataclass(frozen=True)
class Row:
    """What a kind of training usually needs: learning rates for the batch size of the table, the steps that it should
    have, the fewest and the most epochs, and the share of them that warms up."""

    sgd: float
    adamw: float
    steps: int
    epochs: tuple[int, int]
    warmup: float


ROWS: Mapping[str, Row] = {
    "a fresh convolutional network": Row(sgd=0.1, adamw=1e-3, steps=3_000, epochs=(30, 200), warmup=0.05),
    "a fresh transformer": Row(sgd=0.03, adamw=5e-4, steps=6_000, epochs=(60, 300), warmup=0.1),
    "a pretrained convolutional network": Row(sgd=0.01, adamw=1e-3, steps=1_150, epochs=(10, 60), warmup=0.0),
    "a pretrained transformer": Row(sgd=0.003, adamw=5e-5, steps=600, epochs=(10, 60), warmup=0.1),
    "the last layer alone": Row(sgd=0.1, adamw=3e-3, steps=600, epochs=(10, 100), warmup=0.0),
}
BATCHES = ((2_000, 32), (10_000, 64), (math.inf, 128))
"""(Below so many training images, the batch size)."""
SGD_FROM = 20_000
"""Training images from which a fresh convolutional network descends by SGD: with enough steps it generalises better;
with few of them AdamW gets further."""
SGD_RATES_FROM = 0.01
"""A given rate from here on is one of SGD."""
SMALL_NETWORK, SMALL_FACTOR = 1_000_000, 3.0
"""A fresh network of fewer weights takes so many times the rate under AdamW."""
BARE_FACTOR = 1 / 3
"""What the rate is multiplied by where nothing normalises activations."""
LARGEST_SCALING = 8.0
"""The rate grows no further with a given batch size."""


@dataclass(frozen=True)
class ChosenDefaults:
    """Settings with nothing left open. reasons: why, by the name of each setting that was not given. on_device: the
    same of those that follow from the device. reading: how images are read where that was not given, and why."""

    settings: TrainSettings
    facts: TrainingFacts
    reasons: Mapping[str, str] = field(default_factory=dict)
    on_device: Mapping[str, str] = field(default_factory=dict)
    reading: str = ""

    @property
    def values(self) -> dict[str, Any]:
        flat = flatten(self.settings)
        return {key: flat[key] for key in self.reasons}

    def lines(self) -> list[str]:
        """One line per setting: its value, the flag that sets another, and why."""
        flat = flatten(self.settings)
        found = {**self.reasons, **self.on_device}.items()
        shown = [f"--{key.replace('_', '-')} {flat[key]:{_form(flat[key])}}: {why}" for key, why in found]
        return [*shown, f"--workers {self.reading}"] if self.reading else shown

    def recorded(self) -> dict[str, str]:
        """What a run records beside its settings; nothing where everything was given."""
        chosen = {"chosen_defaults": f"{self}"} if self.reasons else {}
        return chosen | ({"chosen_workers": self.reading} if self.reading else {})

    def __str__(self) -> str:
        """All that follows from data and model in one line; empty where everything was given."""
        if not self.reasons:
            return ""
        return f"chosen for {self.facts}: {_listed(self.values)}"

    @property
    def device_note(self) -> str:
        """What follows from the GPU in one line; empty where that was given, or the device is a CPU."""
        flat = flatten(self.settings)
        said = {key: flat[key] for key in self.on_device}
        return f"chosen for the GPU: {_listed(said)}" if set(said.values()) - {"fp32", "off"} else ""


def open_settings(settings: TrainSettings) -> list[str]:
    """Which settings are left to :func:`choose_defaults`.

    >>> open_settings(build(TrainSettings, {"optimizer": "adamw", "epochs": 3}))
    ['lr', 'batch_size', 'warmup']
    """
    flat = flatten(settings.resolved())
    return [key for key in CHOSEN_KEYS if flat[key] is None]


def choose_defaults(settings: TrainSettings, facts: TrainingFacts, device: DeviceFacts | None = None) -> ChosenDefaults:
    """Settings in which what was left open follows from what is known of the training; the rest is kept.

    device: what is known of it; without, what follows from it stays open.

    >>> chosen = choose_defaults(TrainSettings(), TrainingFacts(images=50_000, weights=11_000_000))
    >>> chosen.values
    {'optimizer': 'sgd', 'lr': 0.1, 'batch_size': 128, 'epochs': 30, 'warmup': 1.5}
    >>> small = TrainingFacts(images=1_200, weights=100_000)
    >>> choose_defaults(build(TrainSettings, {"batch_size": 64}), small).values
    {'optimizer': 'adamw', 'lr': 0.0042, 'epochs': 158, 'warmup': 7.9}
    """
    left, flat, row = open_settings(settings), flatten(settings.resolved()), ROWS[facts.row]
    reasons: dict[str, str] = {}
    usual = next(size for below, size in BATCHES if facts.images < below)
    if "batch_size" in left:
        flat["batch_size"] = usual
        reasons["batch_size"] = f"for {facts.images:,} training images"
    if "optimizer" in left:
        flat["optimizer"], reasons["optimizer"] = _optimizer(settings, facts)
    if "epochs" in left:
        flat["epochs"], reasons["epochs"] = _epochs(row, facts, flat["batch_size"])
    if "lr" in left:
        flat["lr"], reasons["lr"] = _rate(row, facts, flat["optimizer"], flat["batch_size"] / usual)
    if "warmup" in left:
        flat["warmup"] = round(row.warmup * flat["epochs"], 2)
        reasons["warmup"] = f"{row.warmup:.0%} of the epochs"
    ordered = {key: reasons[key] for key in CHOSEN_KEYS if key in reasons}
    chosen = build(TrainSettings, flat)
    on_device: dict[str, str] = {}
    if device is not None:
        chosen, on_device = choose_for_device(chosen, device)
    return ChosenDefaults(chosen, facts, ordered, on_device)


def _optimizer(settings: TrainSettings, facts: TrainingFacts) -> tuple[str, str]:
    own = settings.optimizer
    if own.lr is not None:
        name, where = ("sgd", "at or above") if own.lr >= SGD_RATES_FROM else ("adamw", "below")
        return name, f"the rate given is {where} {SGD_RATES_FROM}"
    if own.nesterov:
        return "sgd", "nesterov is given"
    if facts.pretrained or facts.frozen or facts.network == "transformer":
        return "adamw", f"usual for {facts.row}"
    if facts.images >= SGD_FROM:
        return "sgd", f"a fresh convolutional network on {SGD_FROM:,} images or more"
    return "adamw", f"fewer than {SGD_FROM:,} images leave few steps"


def _epochs(row: Row, facts: TrainingFacts, batch_size: int) -> tuple[int, str]:
    each = math.ceil(facts.images / batch_size)
    wanted, (least, most) = math.ceil(row.steps / each), row.epochs
    epochs = min(max(wanted, least), most)
    steps = f"{epochs * each:,} steps"
    if wanted < least:
        return epochs, f"the fewest for this kind of training, {steps}"
    return (
        epochs,
        f"the most for this kind of training, {steps}" if wanted > most else f"{steps}, at least {row.steps:,}",
    )


def _rate(row: Row, facts: TrainingFacts, optimizer: str, larger: float) -> tuple[float, str]:
    """larger: how many times the usual batch size the given one is."""
    rate, why = row.sgd if optimizer == "sgd" else row.adamw, f"{optimizer} for {facts.row}"
    fresh = not (facts.pretrained or facts.frozen)
    if fresh and optimizer != "sgd" and facts.weights < SMALL_NETWORK:
        rate, why = rate * SMALL_FACTOR, f"{why} of less than a million weights"
    if not facts.normalised and not facts.frozen:
        rate, why = rate * BARE_FACTOR, f"{why} without normalisation layers"
    if larger != 1:
        larger = min(larger, LARGEST_SCALING)
        rate, why = rate * (larger if optimizer == "sgd" else math.sqrt(larger)), f"{why}, scaled to the batch size"
    return float(f"{rate:.2g}"), why


def _listed(values: Mapping[str, Any]) -> str:
    return ", ".join(f"{key.replace('_', ' ')} {value:{_form(value)}}" for key, value in values.items())


def _form(value: Any) -> str:
    return "g" if isinstance(value, float) else ""
