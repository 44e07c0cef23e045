"""The published settings of the nineteen corruptions (Hendrycks and Dietterich, 2019), by severity 1 to 5.

CIFAR's were chosen for 32 pixels, ImageNet's for 224. They are used as they are for other sizes, except elastic,
whose lengths are shares of the side.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal

import numpy as np

Table = Literal["auto", "cifar", "imagenet"]
"""auto: ImageNet's from 64 pixels on."""
LARGE = 64
SEVERITIES = (1, 2, 3, 4, 5)

Settings = Mapping[str, Any]


def _rows(names: str, *rows: Sequence[Any] | float) -> tuple[Settings, ...]:
    keys = names.split()
    full = [row if isinstance(row, Sequence) else (row,) for row in rows]
    return tuple(dict(zip(keys, row, strict=True)) for row in full)


def _zooms(*last_and_step: tuple[float, float]) -> tuple[Settings, ...]:
    return tuple({"factors": tuple(np.arange(1, last, step).tolist())} for last, step in last_and_step)


SNOW = "mean deviation size threshold radius sigma keep"
SPATTER = "mean deviation size threshold strength mud"
ELASTIC = "shift sigma affine"

CIFAR: Mapping[str, tuple[Settings, ...]] = {
    "gaussian-noise": _rows("scale", 0.04, 0.06, 0.08, 0.09, 0.10),
    "shot-noise": _rows("photons", 500, 250, 100, 75, 50),
    "impulse-noise": _rows("amount", 0.01, 0.02, 0.03, 0.05, 0.07),
    "speckle-noise": _rows("scale", 0.06, 0.1, 0.12, 0.16, 0.2),
    "gaussian-blur": _rows("sigma", 0.4, 0.6, 0.7, 0.8, 1.0),
    "defocus-blur": _rows("radius softness", (0.3, 0.4), (0.4, 0.5), (0.5, 0.6), (1, 0.2), (1.5, 0.1)),
    "glass-blur": _rows("sigma reach times", (0.05, 1, 1), (0.25, 1, 1), (0.4, 1, 1), (0.25, 1, 2), (0.4, 1, 2)),
    "motion-blur": _rows("radius sigma", (6, 1), (6, 1.5), (6, 2), (8, 2), (9, 2.5)),
    "zoom-blur": _zooms((1.06, 0.01), (1.11, 0.01), (1.16, 0.01), (1.21, 0.01), (1.26, 0.01)),
    "snow": _rows(
        SNOW,
        (0.1, 0.2, 1, 0.6, 8, 3, 0.95),
        (0.1, 0.2, 1, 0.5, 10, 4, 0.9),
        (0.15, 0.3, 1.75, 0.55, 10, 4, 0.9),
        (0.25, 0.3, 2.25, 0.6, 12, 6, 0.85),
        (0.3, 0.3, 1.25, 0.65, 14, 12, 0.8),
    ),
    "frost": _rows("keep cover", (1, 0.2), (1, 0.3), (0.9, 0.4), (0.85, 0.4), (0.75, 0.45)),
    "fog": _rows("density decay", (0.2, 3), (0.5, 3), (0.75, 2.5), (1, 2), (1.5, 1.75)),
    "brightness": _rows("add", 0.05, 0.1, 0.15, 0.2, 0.3),
    "contrast": _rows("factor", 0.75, 0.5, 0.4, 0.3, 0.15),
    "spatter": _rows(
        SPATTER,
        (0.62, 0.1, 0.7, 0.7, 0.5, False),
        (0.65, 0.1, 0.8, 0.7, 0.5, False),
        (0.65, 0.3, 1, 0.69, 0.5, False),
        (0.65, 0.1, 0.7, 0.69, 0.6, True),
        (0.65, 0.1, 0.5, 0.68, 0.6, True),
    ),
    "elastic": _rows(
        ELASTIC, (0, 0, 0.08), (0.05, 0.2, 0.07), (0.08, 0.06, 0.06), (0.1, 0.04, 0.05), (0.1, 0.03, 0.03)
    ),
    "jpeg": _rows("quality", 80, 65, 58, 50, 40),
    "pixelate": _rows("factor", 0.95, 0.9, 0.85, 0.75, 0.65),
    "saturate": _rows("factor add", (0.3, 0), (0.1, 0), (1.5, 0), (2, 0.1), (2.5, 0.2)),
}

R = 244 / 224
"""Elastic's lengths were published in units of 244 for images of 224 pixels."""

IMAGENET: Mapping[str, tuple[Settings, ...]] = {
    "gaussian-noise": _rows("scale", 0.08, 0.12, 0.18, 0.26, 0.38),
    "shot-noise": _rows("photons", 60, 25, 12, 5, 3),
    "impulse-noise": _rows("amount", 0.03, 0.06, 0.09, 0.17, 0.27),
    "speckle-noise": _rows("scale", 0.15, 0.2, 0.35, 0.45, 0.6),
    "gaussian-blur": _rows("sigma", 1, 2, 3, 4, 6),
    "defocus-blur": _rows("radius softness", (3, 0.1), (4, 0.5), (6, 0.5), (8, 0.5), (10, 0.5)),
    "glass-blur": _rows("sigma reach times", (0.7, 1, 2), (0.9, 2, 1), (1, 2, 3), (1.1, 3, 2), (1.5, 4, 2)),
    "motion-blur": _rows("radius sigma", (10, 3), (15, 5), (15, 8), (15, 12), (20, 15)),
    "zoom-blur": _zooms((1.11, 0.01), (1.16, 0.01), (1.21, 0.02), (1.26, 0.02), (1.31, 0.03)),
    "snow": _rows(
        SNOW,
        (0.1, 0.3, 3, 0.5, 10, 4, 0.8),
        (0.2, 0.3, 2, 0.5, 12, 4, 0.7),
        (0.55, 0.3, 4, 0.9, 12, 8, 0.7),
        (0.55, 0.3, 4.5, 0.85, 12, 8, 0.65),
        (0.55, 0.3, 2.5, 0.85, 12, 12, 0.55),
    ),
    "frost": _rows("keep cover", (1, 0.4), (0.8, 0.6), (0.7, 0.7), (0.65, 0.7), (0.6, 0.75)),
    "fog": _rows("density decay", (1.5, 2), (2, 2), (2.5, 1.7), (2.5, 1.5), (3, 1.4)),
    "brightness": _rows("add", 0.1, 0.2, 0.3, 0.4, 0.5),
    "contrast": _rows("factor", 0.4, 0.3, 0.2, 0.1, 0.05),
    "spatter": _rows(
        SPATTER,
        (0.65, 0.3, 4, 0.69, 0.6, False),
        (0.65, 0.3, 3, 0.68, 0.6, False),
        (0.65, 0.3, 2, 0.68, 0.5, False),
        (0.65, 0.3, 1, 0.65, 1.5, True),
        (0.67, 0.4, 1, 0.65, 1.5, True),
    ),
    "elastic": _rows(
        ELASTIC,
        (2 * R, 0.7 * R, 0.1 * R),
        (2 * R, 0.08 * R, 0.2 * R),
        (0.05 * R, 0.01 * R, 0.02 * R),
        (0.07 * R, 0.01 * R, 0.02 * R),
        (0.12 * R, 0.01 * R, 0.02 * R),
    ),
    "jpeg": _rows("quality", 25, 18, 15, 10, 7),
    "pixelate": _rows("factor", 0.6, 0.5, 0.4, 0.3, 0.25),
    "saturate": _rows("factor add", (0.3, 0), (0.1, 0), (2, 0), (5, 0.1), (20, 0.2)),
}


def settings_of(name: str, severity: int, *, side: int, table: Table = "auto") -> Settings:
    """The settings of one corruption for images whose shorter side is given.

    >>> settings_of("contrast", 5, side=32), settings_of("contrast", 5, side=224)
    ({'factor': 0.15}, {'factor': 0.05})
    """
    large = table == "imagenet" or (table == "auto" and side >= LARGE)
    return (IMAGENET if large else CIFAR)[name][severity - 1]
