"""What a repair is fitted on: the validation split, or a part of training; never a test split."""

from __future__ import annotations

import os
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from holdfast.data import Dataset, load
from holdfast.data.splits import Split, hold_out
from holdfast.detect.features import ClassifierExtractor, extract
from holdfast.errors import require
from holdfast.models import ModelCard
from holdfast.repairs.last_layer import LinearHead
from holdfast.rng import derive
from holdfast.settings import read_environment
from holdfast.settings.repair_settings import RepairSettings
from holdfast.train.folder import read_settings
from holdfast.train.run_data import is_own_data, terms_of_run
from holdfast.types import Note


@dataclass(frozen=True, eq=False)
class HeldOutImages:
    """The images to fit on. split: which part of the data they are, in words. seen: whether the run was trained on
    them; None where that is not known."""

    images: Split
    split: str
    seen: bool | None
    notes: tuple[Note, ...]


@dataclass(frozen=True, eq=False)
class StoredFeatures:
    """features (N, D), logits (N, K), labels and groups (N,), on the CPU."""

    features: Tensor
    logits: Tensor
    labels: Tensor
    groups: Tensor


def open_data(run: Path, data: str | Path | Dataset | None, card: ModelCard, own: RepairSettings) -> Dataset:
    """The data, cut into splits as the run cut it, at the size that its network takes."""
    if isinstance(data, Dataset):
        found = data
    else:
        source = _source(run, data)
        given: dict[str, Any] = {"conflict": own.conflict, "val": own.val, "data_seed": own.data_seed}
        terms = terms_of_run(run, source)
        used = {} if terms is None else asdict(terms)
        used |= {name: value for name, value in given.items() if value is not None}
        size = read_settings(run / "run.yaml").data.image_size if is_own_data(run, source) else _side(card)
        found = load(source, root=own.root, confine=own.confine, image_size=size, training=False, **used)
    same = found.classes == card.classes
    require(
        same, f"{found.name} has the classes {_brief(found.classes)}, the model {_brief(card.classes)}; give its data"
    )
    shape = (card.in_channels, *(found.shape[1:] if card.image_size is None else _sides(card)))
    fits = f"{found.name} has images of {found.shape} (C, H, W), and the model takes {shape}"
    require(found.shape == shape, f"{fits}; give data of that shape")
    return found


def source_name(run: Path, data: str | Path | Dataset | None) -> str | Path | Dataset:
    """What to audit on: the data that was given, or the run's own."""
    return data if isinstance(data, Dataset) else _source(run, data)


def choose_held_out(run: Path, data: Dataset, given: str | Path | Dataset | None, own: RepairSettings) -> HeldOutImages:
    """The validation split, or a share of every class of training by seed."""
    ours = not isinstance(given, Dataset) and is_own_data(run, _source(run, given))
    if data.val is not None and len(data.val):
        return HeldOutImages(data.val, f"the validation split of {data.name}", False if ours else None, ())
    none = f"{data.name} has neither a validation nor a training split to fit on, and nothing is fitted on a test split"
    require(len(data.train) > 0, f"{none}; give data with one of them")
    _, part = hold_out(data.train, own.held_out, derive(own.seed, "repair/held-out"))
    share = f"{own.held_out:.0%} of every class of the training split of {data.name} (seed {own.seed})"
    notes = []
    if ours:
        text = f"{data.name} has no validation split, so the repair is fitted on images that {run} was trained on"
        remedy = "a run trained with --val 0.2 is repaired on images that are new to it, which does more"
        notes.append(Note("fitted-on-training-images", text, remedy, "warning"))
    return HeldOutImages(part, share, True if ours else None, tuple(notes))


def store_features(model: nn.Module, images: Split, head: LinearHead, own: RepairSettings) -> StoredFeatures:
    """Features and logits in one pass. Refuses a network whose head does not make its logits of them."""
    found = extract(ClassifierExtractor(model), images, batch_size=own.batch_size, workers=own.workers)
    assert found.features is not None
    assert found.logits is not None
    gap = float((head(found.features) - found.logits).abs().max())
    size = float(found.logits.abs().max())
    linear = gap <= 1e-3 * max(1.0, size)
    kind = "its logits are not a linear map of what its last layer is given"
    require(linear, f"the last layer of this network cannot be replaced: {kind} (they differ by {gap:.3g})")
    return StoredFeatures(found.features.double(), found.logits.double(), images.labels, images.groups)


def subset(stored: StoredFeatures, index: Tensor) -> StoredFeatures:
    return replace(stored, **{name: value[index] for name, value in vars(stored).items()})


def _source(run: Path, data: str | Path | None) -> str | Path:
    if data is not None:
        return data
    recorded = read_environment(run)
    own = recorded.get("own_data")
    require(own is None, f"{run} was trained on a set in memory, {own}; give it with data")
    name, path = read_settings(run / "run.yaml").data.name, recorded.get("data_path", "")
    return name if os.path.exists(name) or not path else path


def _side(card: ModelCard) -> int | None:
    if card.image_size is None:
        return None
    height, width = _sides(card)
    return height if height == width else None


def _sides(card: ModelCard) -> tuple[int, int]:
    size = card.image_size
    assert size is not None
    return (size, size) if isinstance(size, int) else size


def _brief(names: tuple[str, ...]) -> str:
    return ", ".join(names[:5]) + (f", ... ({len(names)})" if len(names) > 5 else "")


def known_groups(stored: StoredFeatures) -> Tensor:
    """Positions of the samples whose group is known."""
    return (stored.groups >= 0).nonzero().flatten()


def group_count(stored: StoredFeatures) -> int:
    return len(torch.unique(stored.groups[stored.groups >= 0]))
