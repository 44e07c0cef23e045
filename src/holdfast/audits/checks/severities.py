"""Corruptions by severity: the nineteen and published corrupted sets, with mean corruption error."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import torch
from torch import Tensor

from holdfast.audits.checks.accuracy import accuracy
from holdfast.audits.subject import Subject
from holdfast.augment.basic import to_float
from holdfast.corruptions import corruption_names, find_corruption
from holdfast.data.corruption_sets import open_corrupted
from holdfast.data.loaders import make_loader
from holdfast.data.splits import Split
from holdfast.devices import autocast
from holdfast.errors import HoldfastError, require
from holdfast.metrics import bounded_mean
from holdfast.module_state import evaluating
from holdfast.types import Finding

KEPT: Final = corruption_names("imagenet-c", extra=False)
"""The fifteen that published means are taken over."""

Key = tuple[str, str]
"""A corruption, and its strength or severity as text."""


def by_severity(
    right: Mapping[Key, Tensor], settings: Mapping[str, Any], *, family: str, baseline: Mapping[str, float] | None
) -> list[Finding]:
    """Accuracy of each corruption at each severity, its error over the severities, and means over corruptions.

    The images are the same in all of them, so a mean's interval is taken over images and not over answers.
    """
    made = []
    errors: dict[str, Tensor] = {}
    for (name, severity), own in right.items():
        made.append(share(own, {"family": family, "corruption": name, "severity": severity}, settings))
    for name in dict.fromkeys(name for name, _ in right):
        errors[name] = 1 - torch.stack([own for key, own in right.items() if key[0] == name]).double().mean(0)
        made.append(mean("corruption_error", errors[name], {"family": family, "corruption": name}, settings))
    known = [spelled(name) for name in errors]
    fifteen = [name for name in errors if spelled(name) in KEPT]
    made += _mean_error(errors, list(errors), {"family": family}, settings, {"over": known})
    if 0 < len(fifteen) < len(errors):
        where = {"family": family, "over": "without the extra four"}
        made += _mean_error(errors, fifteen, where, settings, {"over": [spelled(name) for name in fifteen]})
    if baseline is not None:
        common = [name for name in errors if spelled(name) in baseline]
        require(
            bool(common), f"the baseline has none of the corruptions measured: {', '.join(known)}; got {list(baseline)}"
        )
        relative = {name: errors[name] / baseline[spelled(name)] for name in common}
        where = {"family": family, "relative to": "baseline"}
        most = sum(1 / baseline[spelled(name)] for name in common) / len(common)
        made += _mean_error(relative, common, where, settings, {"over": [spelled(name) for name in common]}, most)
    return made


def _mean_error(
    errors: Mapping[str, Tensor],
    names: Sequence[str],
    where: dict[str, str],
    settings: Mapping[str, Any],
    evidence: Mapping[str, Any],
    most: float = 1.0,
) -> list[Finding]:
    """Mean over corruptions; of sets that differ in size there is no pairing, and no interval."""
    parts = [errors[name] for name in names]
    if len({len(part) for part in parts}) == 1:
        together = torch.stack(parts).mean(0)
        return [mean("mce", together, where, settings, evidence, most)]
    value, n = sum(float(part.mean()) for part in parts) / len(parts), min(len(part) for part in parts)
    return [Finding("corruptions", "mce", value, n, None, None, where, settings, evidence)]


def official_set(subject: Subject, folder: str | Path, *, baseline: Mapping[str, float] | None = None) -> list[Finding]:
    """A published corrupted test set as it is, without resizing."""
    opened = open_corrupted(folder, classes=subject.data.classes)
    right: dict[Key, Tensor] = {}
    for name in opened.corruptions:
        for severity in opened.severities:
            right[spelled(name), str(severity)] = _right(subject, opened.split(name, severity), opened.name)
    n = max(len(own) for own in right.values())
    settings = {"set": opened.name, "images": n, "precision": subject.precision}
    return by_severity(right, settings, family=opened.name, baseline=baseline)


@torch.no_grad()
def _right(subject: Subject, split: Split, name: str) -> Tensor:
    """(N,) whether the model is right on the images of a split of the same size and classes."""
    require(
        split.shape == subject.data.shape,
        f"{name} has images of {split.shape} (channels, height, width), and {subject.data.name} of "
        f"{subject.data.shape}; give the set that belongs to the data",
    )
    most = int(split.labels.max())
    require(
        most < subject.data.num_classes,
        f"{name} has label {most}, and {subject.data.name} {subject.data.num_classes} classes; "
        "give the set that belongs to the data",
    )
    loader = make_loader(split, batch_size=subject.batch_size, device=subject.device, workers=subject.workers)
    found = []
    with evaluating(subject.model), autocast(subject.precision, subject.device):
        for batch in loader.batches(torch.arange(len(split))):
            found.append(subject.model(to_float(batch.x)).argmax(1) == batch.y)
    return torch.cat(found).cpu()


def share(right: Tensor, where: dict[str, str], settings: Mapping[str, Any]) -> Finding:
    made = accuracy(right, where, check="corruptions", name="corruption_accuracy")
    return Finding(made.check, made.name, made.value, made.n, made.low, made.high, where, settings)


def mean(
    name: str,
    values: Tensor,
    where: dict[str, str],
    settings: Mapping[str, Any],
    evidence: Mapping[str, Any] | None = None,
    most: float = 1.0,
) -> Finding:
    """A mean over images of numbers from 0 to ``most``."""
    found = bounded_mean(values, (0.0, most))
    return Finding("corruptions", name, found.value, found.n, found.low, found.high, where, settings, evidence or {})


def spelled(name: str) -> str:
    """A published file's name as this package spells it.

    >>> spelled("gaussian_noise"), spelled("elastic_transform")
    ('gaussian-noise', 'elastic')
    """
    try:
        return find_corruption(name, scale="severity").name
    except HoldfastError:  # a set may hold corruptions that nobody registered
        return name.replace("_", "-")
