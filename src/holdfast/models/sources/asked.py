"""What the caller knows and a source may need."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from holdfast.models.sources.preprocessing import Preprocessing


@dataclass(frozen=True)
class Asked:
    """model: architecture of a weight file. num_classes, shape: of the data. pretrained: whether published weights are
    wanted. preprocessing, image_size: what the user states, None for what the model's settings say."""

    shape: tuple[int, int, int]
    device: torch.device
    model: str | None = None
    num_classes: int | None = None
    pretrained: bool = True
    preprocessing: Preprocessing | None = None
    image_size: tuple[int, int] | None = None
