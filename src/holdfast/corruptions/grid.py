"""What figure 3 of BiasAdv shows: one image under each corruption."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from holdfast.corruptions.imgaug import EIGHT


@dataclass(frozen=True, eq=False)
class ExampleGrid:
    """images: (corruption, strength, C, H, W) in [0, 1]; strength 0 is the image itself."""

    original: Tensor
    images: Tensor
    names: tuple[str, ...]
    strengths: tuple[float, ...]


def example_grid(
    x: Tensor, *, generator: torch.Generator, strengths: Sequence[float] = (0.5, 1.0, 2.0), names: Sequence[str] = ()
) -> ExampleGrid:
    """One image (C, H, W) under the eight corruptions, or those named, at several strengths.

    All strengths of a corruption share their random draws, so that along a row only the strength changes.
    """
    rows = []
    for name in names or EIGHT:
        state = generator.get_state()
        row = []
        for strength in strengths:
            generator.set_state(state)
            row.append(EIGHT[name](x[None], generator=generator, strength=strength)[0])
        rows.append(torch.stack(row))
    return ExampleGrid(x, torch.stack(rows), tuple(names or EIGHT), tuple(strengths))
