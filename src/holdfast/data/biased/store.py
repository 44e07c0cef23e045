"""A made set on disk: arrays that ``load`` reads, and a manifest that says what they are."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import PIL
import torch
from PIL import features
from torch import Tensor

from holdfast import __version__
from holdfast.data.splits import ArraySplit, Dataset, Split, aligned_groups
from holdfast.errors import require
from holdfast.files import replacing, write_atomic


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

    def to_json(self) -> str:
        return json.dumps(asdict(self), indent=2, ensure_ascii=False) + "\n"


def write_set(data: Dataset, out: Path, *, made_from: str, settings: Mapping[str, Any]) -> Manifest:
    """Write ``out`` (.npz) and, beside it, ``<out without .npz>.manifest.json``. Both are there whole or not at all."""
    require(out.suffix == ".npz", f"out must end in .npz, got {out}")
    content: dict[str, npt.NDArray[Any]] = {}
    counts: dict[str, Any] = {}
    own = aligned_groups(data.train.labels, data.train.groups, data.num_classes)
    for part, split in (("train", data.train), ("val", data.val), ("test", data.test)):
        if split is None:
            continue
        content[f"x_{part}"] = np.ascontiguousarray(_images(split).permute(0, 2, 3, 1).numpy())
        content[f"y_{part}"] = split.labels.numpy().astype(np.int64)
        content[f"group_{part}"] = split.groups.numpy().astype(np.int64)
        counts[part] = _counts(split, own, data.num_classes, len(data.group_names))
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
    with replacing(out) as temporary, temporary.open("wb") as file:  # no second copy of the arrays in memory
        np.savez(file, allow_pickle=False, **content, **names)
    write_atomic(out.with_suffix(".manifest.json"), manifest.to_json().encode())
    return manifest


def _images(split: Split) -> Tensor:
    return split.images if isinstance(split, ArraySplit) else split.read(torch.arange(len(split)))


def _counts(split: Split, own: Tensor, classes: int, groups: int) -> dict[str, Any]:
    table = torch.bincount(split.labels * groups + split.groups, minlength=classes * groups).view(classes, groups)
    conflicting = int((split.groups != own[split.labels]).sum())
    return {"samples": len(split), "conflicting": conflicting, "by_class_and_group": table.tolist()}
