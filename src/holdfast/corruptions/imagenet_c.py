"""The nineteen corruptions of Hendrycks and Dietterich (2019) by name and severity."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import Any

import torch
from torch import Tensor

from holdfast.corruptions import blur, digital, geometric, ice, noise, spatter, weather
from holdfast.corruptions.colour import luminance
from holdfast.corruptions.imagenet_c_severities import LARGE, SEVERITIES, Table, settings_of
from holdfast.corruptions.jpeg import Codec
from holdfast.errors import require, unknown

FUNCTIONS: Mapping[str, Callable[..., Tensor]] = {
    "gaussian-noise": noise.gaussian_noise,
    "shot-noise": noise.shot_noise,
    "impulse-noise": noise.impulse_noise,
    "speckle-noise": noise.speckle_noise,
    "gaussian-blur": blur.gaussian_blur,
    "defocus-blur": blur.defocus_blur,
    "glass-blur": blur.glass_blur,
    "motion-blur": blur.motion_blur,
    "zoom-blur": blur.zoom_blur,
    "snow": weather.snow,
    "frost": weather.frost,
    "fog": weather.fog,
    "brightness": weather.brightness,
    "contrast": digital.contrast,
    "spatter": spatter.spatter,
    "elastic": geometric.elastic,
    "jpeg": digital.jpeg_compression,
    "pixelate": digital.pixelate,
    "saturate": digital.saturate,
}

DETERMINISTIC = frozenset(
    {"gaussian-blur", "defocus-blur", "zoom-blur", "brightness", "contrast", "jpeg", "pixelate", "saturate"}
)
"""Those that draw nothing."""
COLOURED = frozenset({"saturate", "spatter", "frost"})
"""Those that need three channels: grey images are coloured first, and the brightness of the result is kept."""
EXTRA = ("speckle-noise", "gaussian-blur", "spatter", "saturate")
"""Left out of the published means over fifteen: they were kept for validation."""


def by_severity(
    x: Tensor,
    name: str,
    *,
    severity: int,
    generator: torch.Generator,
    table: Table = "auto",
    frost_folder: str | Path | None = None,
    codec: Codec = "auto",
) -> Tensor:
    """One of the nineteen applied to images (B, 1 or 3, H, W), float in [0, 1].

    severity: 1..5. table: whose settings. frost_folder: photographs of frost; by default textures are grown from
    noise. codec: who does JPEG.
    """
    if name not in FUNCTIONS:
        raise unknown("corruption", name, FUNCTIONS)
    require(severity in SEVERITIES, f"severity must be 1, 2, 3, 4 or 5, got {severity}")
    side = min(x.shape[-2:])
    large = table == "imagenet" or (table == "auto" and side >= LARGE)
    settings: dict[str, Any] = dict(settings_of(name, severity, side=side, table=table))
    if name not in DETERMINISTIC:
        settings["generator"] = generator
    if name == "jpeg":
        settings["codec"] = codec
    if name == "frost":
        longer = max(x.shape[-2:])
        settings["textures"] = (
            ice.grown(longer)
            if frost_folder is None
            else ice.photographed(Path(frost_folder), side=longer, shrink=not large)
        )
    if x.shape[1] == 1 and name in COLOURED:
        return luminance(FUNCTIONS[name](x.expand(-1, 3, -1, -1), **settings))
    return FUNCTIONS[name](x, **settings)


NINETEEN: Mapping[str, Callable[..., Tensor]] = MappingProxyType(
    {name: partial(by_severity, name=name) for name in FUNCTIONS}
)
"""Each as ``f(x, severity=, generator=)``."""
