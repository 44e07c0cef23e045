"""Sets with a known shortcut, made of any labelled set: seeded, counted, and hashed. Open this to add a kind of bias.

A colour, a corner mark or a background goes with the class, but for an exact share of bias-conflicting samples.
Corrupted CIFAR-10 is in ``readers/corrupted_cifar10.py``.
"""

from __future__ import annotations

import colorsys
import hashlib
import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import PIL
import torch
from PIL import features
from torch import Tensor
from torch.nn.functional import interpolate

from holdfast import __version__
from holdfast.data.splits import ArraySplit, Dataset, Painter, Split, WrappedSplit, all_images
from holdfast.errors import require, require_known
from holdfast.files import replacing, write_atomic
from holdfast.rng import derive

MARK_SIDE = 4
"""Cells on each side of a corner mark."""
CHUNK = 1024
COLOURS: Mapping[str, tuple[int, ...]] = {
    "red": (255, 0, 0),
    "orange": (255, 128, 0),
    "yellow": (255, 255, 0),
    "green": (0, 255, 0),
    "mint": (0, 255, 128),
    "cyan": (0, 255, 255),
    "blue": (0, 0, 255),
    "violet": (128, 0, 255),
    "magenta": (255, 0, 255),
    "white": (255, 255, 255),
}
"""The colour of each class. They differ in hue: in brightness the strokes differ anyway."""


def make_biased(source: Dataset, variant: str, *, out: str | Path, conflict: float = 0.05, seed: int = 0) -> Manifest:
    """A biased variant of a set (coloured, watermark, background) as an .npz file with its manifest."""
    require_known("biased variant", variant, VARIANTS)
    data = VARIANTS[variant](source, conflict=conflict, seed=seed)
    settings = {"variant": variant, "conflict": conflict, "seed": seed}
    return write_set(data, Path(out), made_from=source.name, settings=settings)


def biased_groups(
    labels: Tensor, groups: int, conflict: float, seed: int, *, evenly: bool = False, purpose: str = "biased"
) -> Tensor:
    """(N,) groups equal to the labels (N,), but for a share ``conflict`` of every class, which gets another one.

    The counts are exact: round(conflict N) in all, each class within one of its own share. A larger share adds
    conflicting samples and leaves the others as they were. evenly: each other group gets as many of a class, within
    one; else they are drawn. purpose: what the seed is drawn for.
    """
    require(0 <= conflict <= 1, f"conflict must be in [0, 1], got {conflict}")
    require(groups >= 2, f"a bias needs at least two groups, got {groups}")
    generator = torch.Generator().manual_seed(derive(seed, f"{purpose}/train"))
    order = torch.randperm(len(labels), generator=generator)
    offset = torch.randint(1, groups, (len(labels),), generator=generator)
    assigned = labels.clone()
    shares = [conflict * size for size in torch.bincount(labels).tolist()]
    for label, count in enumerate(apportion(shares, round(conflict * len(labels)))):
        chosen = order[labels[order] == label][:count]
        if evenly:  # in turn, beginning with another group in every class
            offset[chosen] = 1 + (torch.arange(count) + label) % (groups - 1)
        assigned[chosen] = (labels[chosen] + offset[chosen]) % groups
    return assigned


def balanced_groups(labels: Tensor, groups: int, seed: int, *, purpose: str = "biased") -> Tensor:
    """(N,) groups, each equally often (within one) in every class of the labels (N,), and over all."""
    generator = torch.Generator().manual_seed(derive(seed, f"{purpose}/test"))
    order = torch.randperm(len(labels), generator=generator)
    by_class = order[labels[order].argsort(stable=True)]
    assigned = torch.empty_like(labels)
    assigned[by_class] = torch.arange(len(labels)) % groups
    return assigned


def apportion(exact: Sequence[float], total: int) -> list[int]:
    """Whole numbers close to these that sum to the total: the largest remainders are rounded up.

    >>> apportion([1.5, 1.5, 1.0], 4)
    [2, 1, 1]
    """
    counts = [int(value) for value in exact]
    for k in sorted(range(len(exact)), key=lambda k: counts[k] - exact[k])[: total - sum(counts)]:
        counts[k] += 1
    return counts


def coloured(
    data: Dataset, *, conflict: float = 0.05, seed: int = 0, tint: float | None = None, purpose: str = "biased"
) -> Dataset:
    """Images in the colour of their group. tint: 0 leaves them, 1 keeps nothing but brightness times the colour; 1 by
    default for grey images and 0.5 for coloured ones.
    """
    require(tint is None or 0 < tint <= 1, f"tint must be in (0, 1], got {tint}")
    amount = tint if tint is not None else (1.0 if data.shape[0] == 1 else 0.5)
    colours = palette(data.num_classes)
    painter = partial(_tint, colours=torch.tensor(list(colours.values())) / 255, amount=amount)
    made = _variant(data, "coloured", tuple(colours), painter, 3, conflict, seed, purpose)
    return replace(made, group_attribute="colour")


def watermark(data: Dataset, *, conflict: float = 0.05, seed: int = 0) -> Dataset:
    """A mark of 4x4 black and white cells in the lower right corner, a twentieth of the side each."""
    names = tuple(f"mark {k}" for k in range(data.num_classes))
    painter = partial(_mark, patterns=marks(data.num_classes))
    made = _variant(data, "watermark", names, painter, data.shape[0], conflict, seed)
    return replace(made, group_attribute="watermark")


def background(data: Dataset, *, conflict: float = 0.05, seed: int = 0, keep: float = 0.75) -> Dataset:
    """The image, shrunk to a share ``keep`` of its side, on stripes whose colour and direction are the group's."""
    require(0 < keep < 1, f"keep must be in (0, 1), got {keep}")
    colours = palette(data.num_classes)
    painter = partial(_frame, colours=torch.tensor(list(colours.values())) / 255, keep=keep)
    names = tuple(f"{name} stripes" for name in colours)
    made = _variant(data, "background", names, painter, 3, conflict, seed)
    return replace(made, group_attribute="background")


VARIANTS: Mapping[str, Callable[..., Dataset]] = {made.__name__: made for made in (coloured, watermark, background)}


def _tint(images: Tensor, groups: Tensor, *, colours: Tensor, amount: float) -> Tensor:
    """Brightness times a colour (G, 3), mixed with the image."""
    grey = images.float().mean(1, keepdim=True) if images.shape[1] == 3 else images.float()
    painted = grey * colours[groups][:, :, None, None]
    return (images * (1 - amount) + painted * amount).round().to(torch.uint8)


def _mark(images: Tensor, groups: Tensor, *, patterns: Tensor) -> Tensor:
    """A pattern (G, 4, 4) in the corner."""
    cell = max(1, min(images.shape[-2:]) // 20)
    mark = patterns[groups].repeat_interleave(cell, 1).repeat_interleave(cell, 2)
    painted = images.clone()
    painted[..., -mark.shape[1] :, -mark.shape[2] :] = (mark * 255).to(torch.uint8)[:, None]
    return painted


def _frame(images: Tensor, groups: Tensor, *, colours: Tensor, keep: float) -> Tensor:
    """Stripes of a colour (G, 3), in a direction of the group's own, around the image."""
    height, width = images.shape[-2:]
    inner = (max(1, round(height * keep)), max(1, round(width * keep)))
    top, left = (height - inner[0]) // 2, (width - inner[1]) // 2
    angle = torch.arange(len(colours)) * (math.pi / len(colours))
    row, column = torch.arange(height)[:, None], torch.arange(width)
    along = angle.cos()[:, None, None] * column + angle.sin()[:, None, None] * row
    shade = 0.55 + 0.45 * ((along / max(2, min(height, width) / 10)).floor() % 2)
    painted = (shade[:, None] * colours[:, :, None, None] * 255).round().to(torch.uint8)[groups]
    small = interpolate(images.float(), size=inner, mode="bilinear", antialias=True).round()
    painted[..., top : top + inner[0], left : left + inner[1]] = small.clamp(0, 255).to(torch.uint8)
    return painted


def palette(count: int) -> dict[str, tuple[int, ...]]:
    """So many colours by name: those of the coloured digits, or a wheel of hues for more."""
    if count <= len(COLOURS):
        return dict(list(COLOURS.items())[:count])
    wheel = (colorsys.hsv_to_rgb(k / count, 1.0, (1.0, 0.6)[k % 2]) for k in range(count))
    return {f"hue {k}": tuple(round(255 * part) for part in colour) for k, colour in enumerate(wheel)}


def marks(count: int) -> Tensor:
    """(count, 4, 4) patterns, half of their cells set, that differ in at least four cells while there are enough."""
    cells = MARK_SIDE**2
    codes = [sum(1 << bit for bit in chosen) for chosen in combinations(range(cells), cells // 2)]
    order = np.random.default_rng(16).permutation(len(codes))
    kept: list[int] = []
    for least in (6, 4, 2):
        for code in (codes[i] for i in order):
            if len(kept) < count and all((code ^ other).bit_count() >= least for other in kept):
                kept.append(code)
    require(len(kept) == count, f"there are marks for {len(kept)} classes, not for {count}; choose another variant")
    bits = [[code >> bit & 1 for bit in range(cells)] for code in kept]
    return torch.tensor(bits).view(-1, MARK_SIDE, MARK_SIDE)


def _variant(
    data: Dataset,
    name: str,
    names: tuple[str, ...],
    painter: Painter,
    channels: int,
    conflict: float,
    seed: int,
    purpose: str = "biased",
) -> Dataset:
    """Training (and validation) biased, test balanced."""
    made: dict[str, Any] = {}
    for part, split in data.splits.items():
        if part == "test":
            groups = balanced_groups(split.labels, data.num_classes, seed, purpose=purpose)
        else:
            own = seed + (part == "val")
            groups = biased_groups(split.labels, data.num_classes, conflict, own, purpose=purpose)
        made[part] = paint(split, groups, painter, channels)
    return replace(data, name=f"{data.name}-{name}", group_names=names, **made)


def paint(base: Split, groups: Tensor, painter: Painter, channels: int) -> Split:
    """Painted at once where the images are in memory, as they are read where they are files."""
    if not isinstance(base, ArraySplit):
        return WrappedSplit(base, base.labels, groups, painter, channels)
    images = base.images.new_empty(len(base), channels, *base.shape[1:])
    for start in range(0, len(base), CHUNK):
        part = slice(start, start + CHUNK)
        images[part] = painter(base.images[part], groups[part])
    return replace(base, images=images, groups=groups)


@dataclass(frozen=True)
class Manifest:
    """What a file of arrays holds and how it was made.

    counts: for every split, samples in all, those whose group is not their class's own, and the table of
    samples by class (rows) and group (columns).
    sha256: of every array's bytes (C order), which do not depend on how the file was packed.
    """

    name: str
    made_from: str
    settings: Mapping[str, Any]
    classes: tuple[str, ...]
    group_names: tuple[str, ...]
    counts: Mapping[str, Any]
    sha256: Mapping[str, str]
    versions: Mapping[str, str]


def write_set(data: Dataset, out: Path, *, made_from: str, settings: Mapping[str, Any]) -> Manifest:
    """Write ``out`` (.npz) and, beside it, ``<out without .npz>.manifest.json``. Both are there whole or not at all."""
    require(out.suffix == ".npz", f"out must end in .npz, got {out}")
    content: dict[str, npt.NDArray[Any]] = {}
    counts: dict[str, Any] = {}
    groups = len(data.group_names)
    for part, split in data.splits.items():
        content[f"x_{part}"] = np.ascontiguousarray(all_images(split).permute(0, 2, 3, 1).numpy())
        content[f"y_{part}"] = split.labels.numpy().astype(np.int64)
        content[f"group_{part}"] = split.groups.numpy().astype(np.int64)
        cells = torch.bincount(split.labels * groups + split.groups, minlength=data.num_classes * groups)
        conflicting = int((split.groups != split.labels).sum())  # the group of a class has its number
        table = cells.view(-1, groups).tolist()
        counts[part] = {"samples": len(split), "conflicting": conflicting, "by_class_and_group": table}
    manifest = Manifest(
        name=data.name,
        made_from=made_from,
        settings=dict(settings),
        classes=data.classes,
        group_names=data.group_names,
        counts=counts,
        sha256={name: hashlib.sha256(array.data).hexdigest() for name, array in content.items()},
        versions={
            "holdfast": __version__,
            "torch": torch.__version__,
            "numpy": np.__version__,
            "pillow": PIL.__version__,
            "libjpeg": str(features.version("libjpeg_turbo") or features.version("jpg")),
        },
    )
    names = {"classes": np.array(data.classes), "group_names": np.array(data.group_names)}
    names |= {"group_attribute": np.array([data.group_attribute])} if data.group_attribute else {}
    with replacing(out) as temporary, temporary.open("wb") as file:  # no second copy of the arrays in memory
        np.savez(file, allow_pickle=False, **content, **names)
    text = json.dumps(asdict(manifest), indent=2, ensure_ascii=False) + "\n"
    write_atomic(out.with_suffix(".manifest.json"), text.encode())
    return manifest
