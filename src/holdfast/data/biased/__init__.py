"""Sets with a known shortcut, made here: seeded, counted, and hashed."""

from __future__ import annotations

from pathlib import Path

from holdfast.data.biased.corrupted_cifar10 import KINDS, corrupted_cifar10, make_corrupted_cifar10
from holdfast.data.biased.store import Manifest, write_set
from holdfast.data.biased.variants import VARIANTS, background, coloured, watermark
from holdfast.data.splits import Dataset
from holdfast.errors import unknown

__all__ = [
    "KINDS",
    "VARIANTS",
    "Manifest",
    "background",
    "coloured",
    "corrupted_cifar10",
    "make_biased",
    "make_corrupted_cifar10",
    "watermark",
    "write_set",
]


def make_biased(source: Dataset, variant: str, *, out: str | Path, conflict: float = 0.05, seed: int = 0) -> Manifest:
    """A biased variant of a set (coloured, watermark, background) as an .npz file with its manifest."""
    if variant not in VARIANTS:
        raise unknown("biased variant", variant, VARIANTS)
    data = VARIANTS[variant](source, conflict=conflict, seed=seed)
    settings = {"variant": variant, "conflict": conflict, "seed": seed}
    return write_set(data, Path(out), made_from=source.name, settings=settings)
