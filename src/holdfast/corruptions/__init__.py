"""Corruptions of image batches as pure functions with an explicit generator, on any device."""

from __future__ import annotations

from pathlib import Path

import torch
from torch import Tensor

from holdfast.corruptions.grid import ExampleGrid, example_grid
from holdfast.corruptions.imagenet_c import DETERMINISTIC, EXTRA, NINETEEN, by_severity
from holdfast.corruptions.imagenet_c_severities import SEVERITIES, Table
from holdfast.corruptions.imgaug import EIGHT
from holdfast.corruptions.jpeg import Codec
from holdfast.corruptions.quantise import to_bytes
from holdfast.errors import require, unknown

__all__ = [
    "DETERMINISTIC",
    "EIGHT",
    "EXTRA",
    "NINETEEN",
    "SEVERITIES",
    "Codec",
    "ExampleGrid",
    "Table",
    "corrupt",
    "example_grid",
    "to_bytes",
]


def corrupt(
    x: Tensor,
    name: str,
    *,
    generator: torch.Generator,
    severity: int | None = None,
    strength: float | None = None,
    table: Table = "auto",
    frost_folder: str | Path | None = None,
    codec: Codec = "auto",
) -> Tensor:
    """Images (B, 1 or 3, H, W), float in [0, 1], corrupted; every image draws for itself.

    severity: 1..5, for one of the nineteen corruptions of CIFAR-10-C and ImageNet-C; or
    strength: >= 0, for one of the eight of BiasAdv; 1 is the paper's setting.
    generator: on the CPU (then the result is the same on every device) or on the images' device.
    Names may be spelled with - or _.

    >>> x = torch.full((2, 3, 8, 8), 0.5)
    >>> bright = corrupt(x, "brightness", severity=3, generator=torch.Generator())
    >>> [round(value, 2) for value in (bright.min().item(), bright.max().item())]
    [0.65, 0.65]
    """
    require((severity is None) != (strength is None), "give either severity (1..5) or strength (>= 0)")
    require(
        x.ndim == 4 and x.shape[1] in (1, 3) and x.is_floating_point(),
        f"images must be float (B, 1 or 3, H, W), got {x.dtype} {tuple(x.shape)}",
    )
    name = name.replace("_", "-")
    if severity is not None:
        return by_severity(
            x, name, severity=severity, generator=generator, table=table, frost_folder=frost_folder, codec=codec
        )
    assert strength is not None
    if name not in EIGHT:
        raise unknown("corruption", name, EIGHT)
    require(0 <= strength < float("inf"), f"strength must be >= 0, got {strength}")
    if name == "jpeg-compression":
        return EIGHT[name](x, generator=generator, strength=strength, codec=codec)
    return EIGHT[name](x, generator=generator, strength=strength)
