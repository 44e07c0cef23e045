"""Settings of the methods against a shortcut in the data."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

from holdfast.errors import require
from holdfast.settings.hints import Unset
from holdfast.settings.methods.base import MethodSettings

MOST_SHOWN = 10_000
"""How often a sample may be shown in an epoch: a slip of the keyboard would fill the memory with positions."""


@dataclass(frozen=True)
class BiasAdv:
    """How to look for images that contradict the shortcut. Mixed into the settings of a base method."""

    lam: float = 0.5
    """λ: how much the attack spares the model that is trained."""
    radius: float = 0.5
    """Size of the perturbation, in the norm and the space below."""
    steps: int = 5
    """Attack steps."""
    beta: float = 1.0
    """Weight of the images found."""
    norm: Literal["l2", "linf"] = "l2"
    space: Literal["pixel", "normalised"] = "pixel"
    """Whether the radius is in pixels of [0, 1] or in units of the deviation that the model divides by."""
    step_size: Unset[float] = None
    """Length of a step (default: 2.5 radius / steps)."""
    random_start: bool = False
    statistics: Literal["running", "batch"] = "running"
    """What BatchNorm uses during the attack: its running statistics, or those of the batch."""
    running: Literal["all", "clean"] = "all"
    """Which images BatchNorm's running statistics follow: also those found, or the clean ones alone."""

    def __post_init__(self) -> None:
        require(self.lam >= 0, f"lam must be >= 0, got {self.lam}")
        require(self.radius >= 0, f"radius must be >= 0, got {self.radius}")
        require(self.steps >= 1, f"steps must be >= 1, got {self.steps}")
        require(self.beta >= 0, f"beta must be >= 0, got {self.beta}")
        require(self.step_size is None or self.step_size > 0, f"step_size must be > 0, got {self.step_size}")


@dataclass(frozen=True)
class _Gce:
    """How a biased model is trained that leans on what is easy."""

    q: float = 0.7
    """Generalised cross-entropy: 0 is cross-entropy, 1 the error rate."""
    gce: Literal["textbook", "scaled"] = "scaled"
    """The loss as published, or as the authors of LfF code it: its gradient is q times as long."""

    def __post_init__(self) -> None:
        require(0 < self.q <= 1, f"q must be in (0, 1], got {self.q}")


@dataclass(frozen=True)
class Lff(_Gce, MethodSettings):
    """LfF: samples weighted by how much harder they are for a biased model trained alongside."""

    name: ClassVar[str] = "lff"
    implementation: ClassVar[str] = "holdfast.methods.lff:LffMethod"
    difficulty: Literal["averaged", "raw"] = "averaged"
    """Losses averaged over visits and divided by the largest of the class, as the authors code it; or raw ones."""
    ema: float = 0.7
    """averaged: memory of a sample's losses."""

    def __post_init__(self) -> None:
        super().__post_init__()
        require(0 <= self.ema < 1, f"ema must be in [0, 1), got {self.ema}")


@dataclass(frozen=True)
class Jtt(MethodSettings):
    """JTT: train twice, the second time with the first model's errors shown more often."""

    name: ClassVar[str] = "jtt"
    implementation: ClassVar[str] = "holdfast.methods.jtt:JttMethod"
    first_epochs: int = 20
    """Epochs of the first model."""
    up: int = 50
    """How often a sample that the first model gets wrong is shown in an epoch of the second."""
    count: Literal["times", "extra"] = "times"
    """Whether 'up' is how often it is shown, or how often it is added, as the authors' code has it."""

    def __post_init__(self) -> None:
        require(self.first_epochs >= 1, f"first_epochs must be >= 1, got {self.first_epochs}")
        require(1 <= self.up <= MOST_SHOWN, f"up must be in 1..{MOST_SHOWN}, got {self.up}")


@dataclass(frozen=True)
class ErmBiasAdv(BiasAdv, _Gce, MethodSettings):
    """ERM with BiasAdv: also train on images that fool a biased model, but not this one."""

    name: ClassVar[str] = "erm+biasadv"
    implementation: ClassVar[str] = "holdfast.methods.biasadv:ErmBiasAdvMethod"
    lam: float = 1.0
    radius: float = 1.0
    beta: float = 2.0

    def __post_init__(self) -> None:
        BiasAdv.__post_init__(self)
        _Gce.__post_init__(self)


@dataclass(frozen=True)
class JttBiasAdv(BiasAdv, Jtt):
    """JTT with BiasAdv: the first model is the biased one."""

    name: ClassVar[str] = "jtt+biasadv"
    implementation: ClassVar[str] = "holdfast.methods.biasadv:JttBiasAdvMethod"
    lam: float = 1.0

    def __post_init__(self) -> None:
        BiasAdv.__post_init__(self)
        Jtt.__post_init__(self)


@dataclass(frozen=True)
class LffBiasAdv(BiasAdv, Lff):
    """LfF with BiasAdv: images that fool the biased model, weighted by how much their sample follows the shortcut."""

    name: ClassVar[str] = "lff+biasadv"
    implementation: ClassVar[str] = "holdfast.methods.biasadv:LffBiasAdvMethod"

    def __post_init__(self) -> None:
        BiasAdv.__post_init__(self)
        Lff.__post_init__(self)


@dataclass(frozen=True)
class GroupDro(MethodSettings):
    """Group DRO: weigh the groups by how badly they do. Needs group labels."""

    name: ClassVar[str] = "group-dro"
    implementation: ClassVar[str] = "holdfast.methods.group_dro:GroupDroMethod"
    rate: float = 0.01
    """How fast the weight of a group follows its loss."""

    def __post_init__(self) -> None:
        require(self.rate >= 0, f"rate must be >= 0, got {self.rate}")


@dataclass(frozen=True)
class Reweight(MethodSettings):
    """Re-weighting: every class, or every group of every class, counts the same."""

    name: ClassVar[str] = "reweight"
    implementation: ClassVar[str] = "holdfast.methods.reweight:ReweightMethod"
    by: Literal["class", "group"] = "class"
    """What shall count the same; groups need group labels."""
