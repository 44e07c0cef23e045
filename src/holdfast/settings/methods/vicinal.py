"""Settings of the methods that move images and labels without another model."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

from holdfast.errors import require
from holdfast.settings.hints import Unset
from holdfast.settings.methods.base import MethodSettings


@dataclass(frozen=True)
class LabelSmoothing(MethodSettings):
    """Label smoothing: a share of each label is spread over the other classes."""

    name: ClassVar[str] = "label-smoothing"
    implementation: ClassVar[str] = "holdfast.methods.label_smoothing:LabelSmoothingMethod"
    epsilon: float = 0.1
    """The share; each other class gets epsilon / (K - 1) of it."""

    def __post_init__(self) -> None:
        require(0 <= self.epsilon <= 1, f"epsilon must be in [0, 1], got {self.epsilon}")


@dataclass(frozen=True)
class Dropout(MethodSettings):
    """Dropout on the features that the classifier layer is given."""

    name: ClassVar[str] = "dropout"
    implementation: ClassVar[str] = "holdfast.methods.dropout:DropoutMethod"
    p: float = 0.5
    """Share of the features set to zero."""

    def __post_init__(self) -> None:
        require(0 <= self.p < 1, f"p must be in [0, 1), got {self.p}")


@dataclass(frozen=True)
class Gaussian(MethodSettings):
    """Vicinal risk minimisation as first proposed: Gaussian noise on the images."""

    name: ClassVar[str] = "gaussian"
    implementation: ClassVar[str] = "holdfast.methods.gaussian:GaussianMethod"
    sigma: float = 0.05
    """Standard deviation of the noise, in pixels of [0, 1]."""

    def __post_init__(self) -> None:
        require(self.sigma >= 0, f"sigma must be >= 0, got {self.sigma}")


@dataclass(frozen=True)
class Mixup(MethodSettings):
    """MixUp: images and labels on the line between two samples."""

    name: ClassVar[str] = "mixup"
    implementation: ClassVar[str] = "holdfast.methods.mixup:MixupMethod"
    alpha: float = 1.0
    """Shape of the symmetric Beta distribution that the place on the line is drawn from."""
    per_sample: bool = False
    """Draw a place for each sample instead of one for the batch."""

    def __post_init__(self) -> None:
        require(self.alpha > 0, f"alpha must be > 0, got {self.alpha}")


@dataclass(frozen=True)
class CutMix(Mixup):
    """CutMix: a box of another image pasted in, labels mixed by area."""

    name: ClassVar[str] = "cutmix"
    implementation: ClassVar[str] = "holdfast.methods.cutmix:CutMixMethod"


@dataclass(frozen=True)
class ManifoldMixup(Mixup):
    """Manifold MixUp: MixUp of the input or of a hidden layer, drawn at random each step."""

    name: ClassVar[str] = "manifold-mixup"
    implementation: ClassVar[str] = "holdfast.methods.manifold_mixup:ManifoldMixupMethod"
    alpha: float = 2.0
    depth: int = 2
    """How many of the network's first blocks may be mixed after, beside the input."""

    def __post_init__(self) -> None:
        super().__post_init__()
        require(self.depth >= 1, f"depth must be >= 1, got {self.depth}")


@dataclass(frozen=True)
class Alps(MethodSettings):
    """ALPS: images mixed towards another, with the worst label within an L1 ball."""

    name: ClassVar[str] = "alps"
    implementation: ClassVar[str] = "holdfast.methods.alps:AlpsMethod"
    epsilon: float = 0.1
    """Radius of the label ball; half of it moves to the least likely class."""
    mode: float = 0.9
    """Most probable share of the sample's own image."""
    concentration: float = 10.0
    """How closely the shares gather around the mode: alpha + beta of their Beta distribution."""
    alpha: Unset[float] = None
    """With beta: the Beta distribution itself, instead of mode and concentration."""
    beta: Unset[float] = None

    def __post_init__(self) -> None:
        require(0 <= self.epsilon <= 2, f"epsilon must be in [0, 2], got {self.epsilon}")
        require(0 <= self.mode <= 1, f"mode must be in [0, 1], got {self.mode}")
        require(self.concentration > 2, f"concentration must be > 2, got {self.concentration}")
        require(
            (self.alpha is None) == (self.beta is None),
            f"alpha ({self.alpha}) and beta ({self.beta}) go together; give both, or mode and concentration",
        )
        require(
            self.alpha is None or (self.alpha > 0 and (self.beta or 0) > 0),
            f"alpha and beta must be > 0, got {self.alpha} and {self.beta}",
        )


@dataclass(frozen=True)
class Adversarial(MethodSettings):
    """Adversarial training: the images near the samples that the model gets most wrong (PGD)."""

    name: ClassVar[str] = "adversarial"
    implementation: ClassVar[str] = "holdfast.methods.adversarial:AdversarialMethod"
    radius: float = 8 / 255
    """In pixels."""
    steps: int = 7
    step_size: Unset[float] = None
    """Length of a step (default: 2.5 radius / steps)."""
    norm: Literal["linf", "l2"] = "linf"
    random_start: bool = True
    clean: float = 0.0
    """Weight of the samples themselves, beside their neighbours."""

    def __post_init__(self) -> None:
        require(self.radius >= 0, f"radius must be >= 0, got {self.radius}")
        require(self.steps >= 1, f"steps must be >= 1, got {self.steps}")
        require(self.step_size is None or self.step_size > 0, f"step_size must be > 0, got {self.step_size}")
        require(self.clean >= 0, f"clean must be >= 0, got {self.clean}")


@dataclass(frozen=True)
class Vat(MethodSettings):
    """Virtual adversarial training: predictions that do not change in the direction in which they change most."""

    name: ClassVar[str] = "vat"
    implementation: ClassVar[str] = "holdfast.methods.vat:VatMethod"
    radius: float = 1.0
    """L2 length of the perturbation, in pixels."""
    weight: float = 1.0
    """Weight of the smoothness term."""
    steps: int = 1
    """Power iterations that look for the direction."""
    xi: float = 1e-2
    """Length at which the direction is probed."""

    def __post_init__(self) -> None:
        require(self.radius >= 0, f"radius must be >= 0, got {self.radius}")
        require(self.weight >= 0, f"weight must be >= 0, got {self.weight}")
        require(self.steps >= 1, f"steps must be >= 1, got {self.steps}")
        require(self.xi > 0, f"xi must be > 0, got {self.xi}")
