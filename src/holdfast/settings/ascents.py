"""Where the gradient is taken: at the weights, or where an ascent moved them to."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal, Self

from holdfast.errors import require
from holdfast.settings.choice import Choice


@dataclass(frozen=True)
class AscentSettings(Choice):
    """One of the ascents in weight space.

    >>> AscentSettings.choose({"name": "fsam", "rho": 0.1}).rho
    0.1
    """

    kind: ClassVar[str] = "ascent"
    known: ClassVar[dict[str, type[Self]]] = {}
    direction: ClassVar[str] = "batch"
    """Whose gradient is climbed: batch, full, other-batch, large-batch, noise (batch without its part along full)."""
    measure: ClassVar[str] = "absolute"
    """What the radius is a distance in: absolute, or relative to the size of each weight."""

    @property
    def others(self) -> int:
        """How many batches are climbed along beside the one that is trained on."""
        return 0

    def akin(self, other: Choice) -> bool:
        return isinstance(other, AscentSettings) and other.measure == self.measure


@dataclass(frozen=True)
class NoAscent(AscentSettings):
    """Take the gradient at the weights themselves."""

    name: ClassVar[str] = "none"


@dataclass(frozen=True)
class Sam(AscentSettings):
    """SAM: the steepest point within a ball around the weights."""

    name: ClassVar[str] = "sam"
    rho: float = 0.05
    """Radius of the ascent."""
    rho_schedule: Literal["constant", "linear", "cosine"] = "constant"
    """How the radius moves over the training, from rho to 0."""

    def __post_init__(self) -> None:
        for name in ("rho", "eta", "sigma"):  # whichever of them the ascent has
            value = getattr(self, name, 0.0)
            require(value >= 0, f"{name} must be >= 0, got {value}")
        lmbda = getattr(self, "lmbda", 0.0)
        require(0 <= lmbda < 1, f"lmbda must be in [0, 1), got {lmbda}")


@dataclass(frozen=True)
class Asam(Sam):
    """ASAM: a ball that scales with each weight."""

    name: ClassVar[str] = "asam"
    measure: ClassVar[str] = "relative"
    rho: float = 0.5
    eta: float = 0.01
    """Added to the size of each weight."""


@dataclass(frozen=True)
class FisherSam(Sam):
    """Fisher SAM: a ball in the geometry of the gradient's own size."""

    name: ClassVar[str] = "fisher-sam"
    eta: float = 1.0
    """Weight of the squared gradient."""


@dataclass(frozen=True)
class Fsam(Sam):
    """Friendly SAM: SAM without the full-gradient part of its direction."""

    name: ClassVar[str] = "fsam"
    sigma: float = 1.0
    """How much of the running mean gradient is taken away."""
    lmbda: float = 0.9
    """Memory of the running mean."""


@dataclass(frozen=True)
class Fasam(Asam):
    """Friendly ASAM."""

    name: ClassVar[str] = "fasam"
    sigma: float = 1.0
    lmbda: float = 0.9


@dataclass(frozen=True)
class FisherFsam(FisherSam):
    """Friendly Fisher SAM."""

    name: ClassVar[str] = "fisher-fsam"
    sigma: float = 1.0
    lmbda: float = 0.9


@dataclass(frozen=True)
class SamFull(Sam):
    """SAM along the gradient of the whole training set; a study tool, as slow as it sounds."""

    name: ClassVar[str] = "sam-full"
    direction: ClassVar[str] = "full"


@dataclass(frozen=True)
class SamDb(Sam):
    """SAM along the gradient of another random batch."""

    name: ClassVar[str] = "sam-db"
    direction: ClassVar[str] = "other-batch"

    @property
    def others(self) -> int:
        return 1


@dataclass(frozen=True)
class SamLarge(Sam):
    """SAM along the gradient of a larger batch: the one that is trained on and others."""

    name: ClassVar[str] = "sam-large"
    direction: ClassVar[str] = "large-batch"
    batches: int = 4
    """How many batches together; 1 is SAM."""

    @property
    def others(self) -> int:
        return self.batches - 1

    def __post_init__(self) -> None:
        super().__post_init__()
        require(self.batches >= 1, f"batches must be >= 1, got {self.batches}")


@dataclass(frozen=True)
class SamNoise(Sam):
    """SAM along the batch gradient without its part along the full gradient; as slow as sam-full."""

    name: ClassVar[str] = "sam-noise"
    direction: ClassVar[str] = "noise"
