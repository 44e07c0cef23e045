"""The settings of detectors: flags of ``holdfast detect``, ``predict`` and ``describe``, and keyword arguments of the
functions of :mod:`holdfast.detect` behind them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any, Final, Literal

from tyro.conf import OmitArgPrefixes, arg

from holdfast.settings.fields import (
    LARGEST_SEED,
    Bounded,
    Columns,
    Confine,
    Device,
    Root,
    SkipUnreadable,
    Unset,
    Within,
    Workers,
)

MOST_LATENT: Final = 4096
"""Latent dimensions: no map of images needs more, and a slip of the keyboard would fill the memory."""


def _scores_hint(default: str) -> str:
    """What ``--scores`` takes, read from the declarations when help is asked for."""
    from holdfast.parts import DETECTORS

    return f"(default: {default}; or any of {', '.join(DETECTORS)})"


@dataclass(frozen=True)
class ReadSettings(Bounded):
    """How images are read."""

    root: Root = None
    columns: Columns = None
    confine: Confine = False
    skip_unreadable: SkipUnreadable = False
    batch_size: Annotated[Unset[int], Within(1)] = None
    """Images per pass (default: 256; on a CPU fewer of large images, such as 4 of 224 pixels)."""
    workers: Annotated[Workers, Within(0)] = None
    device: Device = "auto"

    def place(self) -> dict[str, Any]:
        """Those that say where and what the images are, for what opens them."""
        return {name: getattr(self, name) for name in ("root", "columns", "confine")}


@dataclass(frozen=True)
class VAETrainingSettings(Bounded):
    """How a VAE is trained on images."""

    root: Root = None
    columns: Columns = None
    confine: Confine = False
    image_size: Annotated[Unset[int], Within(1, 4096, "..")] = None
    """Side in pixels that images are resized to (default: their own)."""
    network: Literal["strided", "report"] = "strided"
    """The VAE: ours, or that of the report this follows."""
    latent: Annotated[int, Within(1, MOST_LATENT, "..")] = 16
    """Latent dimensions of the VAE."""
    epochs: Annotated[int, Within(1)] = 20
    """Epochs of the VAE."""
    batch_size: Annotated[int, Within(1)] = 128
    """Batch size."""
    lr: Annotated[float, Within(0, ends="()")] = 1e-3
    """Learning rate."""
    seed: Annotated[int, Within(0, LARGEST_SEED, "..")] = 0
    """Seed of the weights, the order and the held-out images."""
    device: Device = "auto"


DESCRIBE_TRAINING = VAETrainingSettings(latent=2, epochs=30)
"""How a VAE is trained that only draws a map."""


@dataclass(frozen=True)
class FitSettings(Bounded):
    """How to learn what is normal."""

    out: Unset[str] = None
    """The detector's folder (default: inside --run)."""
    run: Unset[str] = None
    """A trained run whose classifier is to be watched; its features are scored then."""
    split: Unset[Literal["train", "val", "labeled"]] = None
    """Which part of data that has parts to learn from (default: train); other data is taken whole."""
    scores: Annotated[tuple[str, ...], arg(metavar="NAME [NAME ...]", help_behavior_hint=_scores_hint)] = ("fused",)
    """Detectors to score with, several of them joined; fused is the default choice."""
    beta: Annotated[float, Within(0, ends="[)")] = 1.0
    """Weight of the VAE's divergence term."""
    sigma: Annotated[Unset[float], Within(0, ends="()")] = None
    """The VAE's standard deviation of a pixel (default: learned; the report's is 0.7071)."""
    encoder: str = "convnet"
    """Network that learns features by predicting rotations."""
    changes: bool = False
    """It also learns to recognise changes (blurred, pasted, ...), so that damage shows in its features."""
    combine: Literal["mean", "max"] = "mean"
    """How several scores are joined."""
    encoder_epochs: Annotated[int, Within(1)] = 10
    """Epochs of that network."""
    held_out: Annotated[float, Within(0, 1, "()")] = 0.2
    """Share of the images that is held out: it gives the scores their scale, and the threshold."""
    false_alarm_rate: Annotated[float, Within(0, 1, "()")] = 0.05
    """Share of normal images that may be flagged."""
    precision: Literal["fp32", "tf32", "bf16"] = "fp32"
    """Of the arithmetic."""
    training: OmitArgPrefixes[VAETrainingSettings] = VAETrainingSettings()
