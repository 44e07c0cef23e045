"""ImageNet-C's corruptions (Hendrycks and Dietterich, 2019): how they are declared; noise, colour, geometry, JPEG.

Each is declared with its published settings, severity 1 first: CIFAR-10-C's were chosen for 32 pixels, ImageNet-C's for
224. They are used unchanged for other sizes, except elastic's, whose lengths are shares of the shorter side.
The functions take images (B, C, H, W), float in [0, 1]. Blurs and weather have files of their own.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, TypeVar

import torch
import torch.nn.functional as F
from torch import Tensor

from holdfast.corruptions.jpeg import Codec, jpeg
from holdfast.corruptions.pixels import (
    box_matrix,
    gaussian,
    luminance,
    normal,
    pixel_grid,
    poisson,
    sample,
    separable,
    uniform,
)
from holdfast.parts import corruption

SeverityTable = Literal["auto", "cifar", "imagenet"]
"""auto: ImageNet-C's from 64 pixels on."""
LARGE = 64
SEVERITIES = (1, 2, 3, 4, 5)

Settings = Mapping[str, Any]
Function = TypeVar("Function", bound=Callable[..., Tensor])

TABLES: dict[str, dict[str, tuple[Settings, ...]]] = {}
"""Settings by corruption, table and severity, as declared."""


def severities(names: str, *, cifar: Sequence[Any], imagenet: Sequence[Any]) -> Callable[[Function], Function]:
    """Give a corruption its published settings: their names, and their values from severity 1 on in both tables."""
    keys = names.split()

    def by_severity(values: Sequence[Any]) -> tuple[Settings, ...]:
        return tuple(dict(zip(keys, row if len(keys) > 1 else (row,), strict=True)) for row in values)

    def give(function: Function) -> Function:
        setattr(function, "tables", {"cifar": by_severity(cifar), "imagenet": by_severity(imagenet)})  # noqa: B010
        return function

    return give


def imagenet_c(name: str, *, coloured: bool = False, **declared: Any) -> Callable[[Function], Function]:
    """Declare a corruption of ImageNet-C: a function of images and of the settings that ``@severities`` gives it.

    The function may also take generator, codec, frost_folder and large (whether ImageNet-C's settings are used).
    coloured: needs three channels; grey images are coloured first, and the luminance of the result is kept.
    declared: fields of :class:`holdfast.parts.CorruptionPart`.
    """

    def declare(function: Function) -> Function:
        takes = inspect.signature(function).parameters
        tables = TABLES[name] = function.tables  # type: ignore[attr-defined]

        def by_severity(
            x: Tensor,
            *,
            severity: int,
            generator: torch.Generator,
            table: SeverityTable = "auto",
            frost_folder: str | Path | None = None,
            codec: Codec = "auto",
        ) -> Tensor:
            large = table == "imagenet" or (table == "auto" and min(x.shape[-2:]) >= LARGE)
            offered = {"generator": generator, "codec": codec, "frost_folder": frost_folder, "large": large}
            wanted = {key: value for key, value in offered.items() if key in takes}
            settings = tables["imagenet" if large else "cifar"][int(severity) - 1]
            if coloured and x.shape[1] == 1:
                return luminance(function(x.expand(-1, 3, -1, -1), **settings, **wanted))
            return function(x, **settings, **wanted)

        by_severity.__module__, by_severity.__qualname__ = function.__module__, function.__qualname__
        corruption(name, family="imagenet-c", random="generator" in takes, **declared)(by_severity)
        return function

    return declare


@imagenet_c("gaussian-noise", about="Gaussian noise in every value", order=1)
@severities("scale", cifar=(0.04, 0.06, 0.08, 0.09, 0.10), imagenet=(0.08, 0.12, 0.18, 0.26, 0.38))
def gaussian_noise(x: Tensor, *, scale: float, generator: torch.Generator) -> Tensor:
    """x + N(0, scale²) in every value."""
    return (x + scale * normal(x.shape, like=x, generator=generator)).clamp(0, 1)


@imagenet_c("shot-noise", about="Poisson noise of a sensor that counts few photons", order=2)
@severities("photons", cifar=(500, 250, 100, 75, 50), imagenet=(60, 25, 12, 5, 3))
def shot_noise(x: Tensor, *, photons: float, generator: torch.Generator) -> Tensor:
    """Poisson(photons · x) / photons: a sensor that counts so many photons for white."""
    return (poisson(x * photons, generator=generator) / photons).clamp(0, 1)


@imagenet_c("impulse-noise", about="single values set to 0 or 1", order=3)
@severities("amount", cifar=(0.01, 0.02, 0.03, 0.05, 0.07), imagenet=(0.03, 0.06, 0.09, 0.17, 0.27))
def impulse_noise(x: Tensor, *, amount: float, generator: torch.Generator) -> Tensor:
    """A share of all values, channel by channel, set to 0 or 1 with equal chance."""
    chance = uniform(x.shape, 0, 1, like=x, generator=generator)
    replaced = torch.where(chance < amount / 2, torch.zeros_like(x), x)
    return torch.where((chance >= amount / 2) & (chance < amount), torch.ones_like(x), replaced)


@imagenet_c("speckle-noise", about="noise that grows with brightness", order=4, extra=True)
@severities("scale", cifar=(0.06, 0.1, 0.12, 0.16, 0.2), imagenet=(0.15, 0.2, 0.35, 0.45, 0.6))
def speckle_noise(x: Tensor, *, scale: float, generator: torch.Generator) -> Tensor:
    """x · (1 + N(0, scale²)): what is brighter is noisier."""
    return (x + scale * x * normal(x.shape, like=x, generator=generator)).clamp(0, 1)


@imagenet_c("brightness", about="everything brighter, at the same hue and saturation", order=13)
@severities("add", cifar=(0.05, 0.1, 0.15, 0.2, 0.3), imagenet=(0.1, 0.2, 0.3, 0.4, 0.5))
def brightness(x: Tensor, *, add: float) -> Tensor:
    """The value of the HSV form raised; hue and saturation stay. Black becomes grey."""
    value = x.amax(1, keepdim=True)
    raised = (value + add).clamp(0, 1)
    return torch.where(value > 0, x * (raised / value.clamp_min(1e-12)), raised).clamp(0, 1)


@imagenet_c("contrast", about="less contrast", order=14)
@severities("factor", cifar=(0.75, 0.5, 0.4, 0.3, 0.15), imagenet=(0.4, 0.3, 0.2, 0.1, 0.05))
def contrast(x: Tensor, *, factor: float) -> Tensor:
    """Every channel drawn toward its own mean."""
    mean = x.mean((2, 3), keepdim=True)
    return ((x - mean) * factor + mean).clamp(0, 1)


R = 244 / 224
"""Elastic's lengths were published in units of 244 for images of 224 pixels."""


@imagenet_c(
    "elastic", about="a random affine map and smooth local displacements", order=16, aliases=("elastic-transform",)
)
@severities(
    "shift sigma affine",
    cifar=((0, 0, 0.08), (0.05, 0.2, 0.07), (0.08, 0.06, 0.06), (0.1, 0.04, 0.05), (0.1, 0.03, 0.03)),
    imagenet=(
        (2 * R, 0.7 * R, 0.1 * R),
        (2 * R, 0.08 * R, 0.2 * R),
        (0.05 * R, 0.01 * R, 0.02 * R),
        (0.07 * R, 0.01 * R, 0.02 * R),
        (0.12 * R, 0.01 * R, 0.02 * R),
    ),
)
def elastic(x: Tensor, *, shift: float, sigma: float, affine: float, generator: torch.Generator) -> Tensor:
    """A random affine map, then pixels moved by smoothed noise. Lengths are shares of the shorter side."""
    height, width = x.shape[-2:]
    side = min(height, width)
    row, column = pixel_grid(x)
    # three points around the middle are moved, and the image with them
    centre = torch.tensor([width // 2, height // 2], dtype=x.dtype, device=x.device)
    points = torch.tensor([[1, 1], [1, -1], [-1, -1]], dtype=x.dtype, device=x.device) * (side // 3) + centre
    moved = points + uniform((len(x), 3, 2), -affine * side, affine * side, like=x, generator=generator)
    back: Tensor = torch.linalg.solve(F.pad(moved, (0, 1), value=1.0), points.expand_as(moved)).mT[..., None, None]
    source = back[:, :, 0] * column + back[:, :, 1] * row + back[:, :, 2]
    x = sample(x, source[:, 1], source[:, 0], border="mirror")
    if shift == 0:
        return x.clamp(0, 1)
    field = uniform((len(x), 2, height, width), -1, 1, like=x, generator=generator)
    field = gaussian(field, sigma * side, border="symmetric", truncate=3) * (shift * side)
    return sample(x, row + field[:, 1], column + field[:, 0], border="symmetric").clamp(0, 1)


@imagenet_c("jpeg", about="JPEG compression of low quality", order=17, aliases=("jpeg-compression",))
@severities("quality", cifar=(80, 65, 58, 50, 40), imagenet=(25, 18, 15, 10, 7))
def jpeg_compression(x: Tensor, *, quality: int, codec: Codec = "auto") -> Tensor:
    """Written as JPEG of a quality in 1..100 and read again."""
    return jpeg(x, torch.full((len(x),), quality), codec=codec)


@imagenet_c("pixelate", about="low resolution", order=18)
@severities("factor", cifar=(0.95, 0.9, 0.85, 0.75, 0.65), imagenet=(0.6, 0.5, 0.4, 0.3, 0.25))
def pixelate(x: Tensor, *, factor: float) -> Tensor:
    """Shrunk by a box filter and enlarged again."""
    sides = [(side, int(side * factor)) for side in x.shape[-2:]]
    return separable(x, *(box_matrix(small, side) @ box_matrix(side, small) for side, small in sides))


@imagenet_c("saturate", about="paler or stronger colours", order=19, coloured=True, extra=True)
@severities(
    "factor add",
    cifar=((0.3, 0), (0.1, 0), (1.5, 0), (2, 0.1), (2.5, 0.2)),
    imagenet=((0.3, 0), (0.1, 0), (2, 0), (5, 0.1), (20, 0.2)),
)
def saturate(x: Tensor, *, factor: float, add: float) -> Tensor:
    """The saturation of the HSV form scaled and raised; hue and value stay. Grey has the hue of red."""
    value = x.amax(1, keepdim=True)
    missing = value - x
    saturation = missing.amax(1, keepdim=True) / value.clamp_min(1e-12)
    wanted = (saturation * factor + add).clamp(0, 1)
    red = value * torch.tensor([0.0, 1.0, 1.0], dtype=x.dtype, device=x.device).view(3, 1, 1)
    share = torch.where(saturation > 0, missing / saturation.clamp_min(1e-12), red)
    return (value - share * wanted).clamp(0, 1)
