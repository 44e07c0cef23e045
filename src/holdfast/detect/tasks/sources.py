"""What the commands around detectors take for pictures, and where a run keeps its detector."""

from __future__ import annotations

from pathlib import Path

from holdfast.data.splits import Dataset, Split
from holdfast.models import ModelCard

Source = str | Path | Split | Dataset
DETECTOR = "detector"
"""The folder in a run where its classifier's detector lies."""


def shape_for(card: ModelCard | None) -> tuple[int, int, int] | None:
    """(C, H, W) that a classifier takes; None where it takes any size."""
    if card is None or card.image_size is None:
        return None
    size = card.image_size
    return (card.in_channels, size, size) if isinstance(size, int) else (card.in_channels, *size)
