"""Attack settings by name: those of the tables of ALPS (seeds of the recipes), in both readings of the radius."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from holdfast.attacks.common import Model
from holdfast.attacks.fgsm import fgsm
from holdfast.attacks.norms import Space
from holdfast.attacks.pgd import pgd


@dataclass(frozen=True)
class Preset:
    """One attack with everything settled. step_size None is a single step of the whole radius (FGSM)."""

    radius: float
    step_size: float | None = None
    steps: int = 1
    space: Space = "pixel"

    def __call__(self, model: Model, x: Tensor, y: Tensor, *, scale: Tensor | Sequence[float] | None = None) -> Tensor:
        """scale: the deviation of each channel, for the normalised space."""
        common: dict[str, Any] = {"radius": self.radius, "space": self.space}
        if self.space == "normalised":
            common["scale"] = scale
        if self.step_size is None:
            return fgsm(model, x, y, **common)
        return pgd(model, x, y, steps=self.steps, step_size=self.step_size, keep="last", **common)


PRESETS: Mapping[str, Preset] = {
    "alps-table-5": Preset(4 / 255),
    "alps-table-5-normalised": Preset(4 / 255, space="normalised"),
    "alps-table-6": Preset(4 / 255, 1 / 255, 10),
    "alps-table-6-normalised": Preset(4 / 255, 1 / 255, 10, space="normalised"),
}
"""The paper says "radius 4, step 1, 10 steps" and not in which space. Its figures fit 4/255 after normalisation, about
a quarter of that in pixels; most readers would take it as pixels. Both are here; the textbook's last point is kept."""
